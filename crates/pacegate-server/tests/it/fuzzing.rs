//! The inputs of `cargo xtask fuzz` and random changes of them. libFuzzer finds more, but takes minutes to build.

use std::{fs, path::Path};

use pacegate_server::fuzzing;
use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config, TestRunner},
};

/// Number of changed inputs for each parser.
const CASES: u32 = 4_000;

/// A change of one place of an input.
#[derive(Clone, Debug)]
enum Edit {
    Byte(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>) {
        let (Self::Byte(place, _)
        | Self::Insert(place, _)
        | Self::Remove(place, _)
        | Self::Repeat(place, _)
        | Self::Cut(place)) = self;
        let at = place.index(input.len() + 1);
        let rest = input.len() - at;
        match self {
            Self::Byte(_, byte) => drop(input.splice(at..at + rest.min(1), [*byte])),
            Self::Insert(_, bytes) => drop(input.splice(at..at, bytes.iter().copied())),
            Self::Remove(_, length) => drop(input.drain(at..at + rest.min(*length))),
            Self::Repeat(_, length) => input.extend_from_within(at..at + rest.min(*length)),
            Self::Cut(_) => input.truncate(at),
        }
    }
}

/// Returns the contents of a file in which each line is a word in quotes.
fn words(path: &Path) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.trim_matches('"').as_bytes().to_vec()).collect()
}

fn edits(words: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<Edit>> {
    let place = any::<Index>;
    let bytes = prop_oneof![
        Just(words).prop_shuffle().prop_map(|words| words[0].clone()),
        vec(any::<u8>(), 1..9)
    ];
    let edit = prop_oneof![
        (place(), any::<u8>()).prop_map(|(place, byte)| Edit::Byte(place, byte)),
        (place(), bytes).prop_map(|(place, bytes)| Edit::Insert(place, bytes)),
        (place(), 1..64_usize).prop_map(|(place, length)| Edit::Remove(place, length)),
        (place(), 1..64_usize).prop_map(|(place, length)| Edit::Repeat(place, length)),
        place().prop_map(Edit::Cut),
    ];
    vec(edit, 0..6)
}

/// Gives a parser all inputs of its folder, then random changes of them. It may reject any input, but never panic.
fn feed(name: &str, parse: fn(&[u8])) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let folder = fs::read_dir(fuzz.join("corpus").join(name)).unwrap();
    let inputs: Vec<_> = folder.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!inputs.is_empty());
    inputs.iter().for_each(|input| parse(input));
    let mut words = words(&fuzz.join("words").join(name));
    words.extend(inputs.iter().cloned());
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let random = (0..inputs.len(), edits(words)).prop_map(|(place, edits)| {
        let mut input = inputs[place].clone();
        edits.iter().for_each(|edit| edit.apply(&mut input));
        input
    });
    let run = |input: Vec<u8>| {
        parse(&input);
        Ok(())
    };
    TestRunner::new(config).run(&random, run).unwrap();
}

#[test]
fn no_redis_command_panics() {
    feed("resp", fuzzing::resp);
}

#[test]
fn no_http_body_panics() {
    feed("json", fuzzing::json);
}

#[test]
fn no_envoy_message_panics() {
    feed("rls", fuzzing::rls);
}

#[test]
fn no_configuration_file_panics() {
    feed("policies", fuzzing::policies);
}
