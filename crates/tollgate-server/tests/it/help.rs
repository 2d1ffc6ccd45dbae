use crate::program::run;

#[test]
fn help_teaches_by_examples() {
    for (args, example) in [
        (&["--help"][..], "tollgate check --limit 5/minute alice --times 6"),
        (
            &["serve", "--help"],
            "tollgate serve --config tollgate.yaml --store redis://127.0.0.1:6379",
        ),
        (&["check", "--help"], "tollgate check --limit '1/second burst 3' alice --times 4"),
        (&["explain", "--help"], "tollgate explain --config tollgate.yaml -a user=alice"),
        (&["doctor", "--help"], "tollgate doctor redis://127.0.0.1:6379"),
        (&["validate", "--help"], "tollgate validate tollgate.yaml"),
        (&["schema", "--help"], "tollgate schema > tollgate.schema.json"),
        (&["bench", "--help"], "tollgate bench resp://127.0.0.1:6380 --pipeline 16"),
    ] {
        let finished = run(args, b"");
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{args:?}");
        let (_, examples) = finished.stdout.split_once("\nExamples:\n").unwrap();
        assert!(examples.contains(example), "{examples}");
    }
}

#[test]
fn check_says_that_nothing_stays() {
    let finished = run(&["check", "--help"], b"");
    assert!(finished.stdout.contains("the state lives only for this run"), "{}", finished.stdout);
}

#[test]
fn the_version_is_that_of_the_package() {
    let finished = run(&["--version"], b"");
    assert_eq!(finished.stdout, concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n"));
}
