use crate::program::run;

#[test]
fn help_has_examples() {
    for (args, example) in [
        (&["--help"][..], "pacegate check --limit 5/minute alice --times 6"),
        (&["serve", "--help"], "pacegate serve pacegate.yaml --store redis://127.0.0.1:6379"),
        (&["check", "--help"], "pacegate check --limit '1/second burst 3' alice --times 4"),
        (&["explain", "--help"], "pacegate explain --config pacegate.yaml -a user=alice"),
        (&["simulate", "--help"], "pacegate simulate access.log.1.gz --limit 100/minute --per ip"),
        (&["doctor", "--help"], "pacegate doctor redis://127.0.0.1:6379"),
        (&["validate", "--help"], "pacegate validate pacegate.yaml"),
        (&["schema", "--help"], "pacegate schema > pacegate.schema.json"),
        (&["completions", "--help"], "pacegate completions zsh > ~/.zfunc/_pacegate"),
        (&["man", "--help"], "pacegate man serve | man -l -"),
        (&["bench", "--help"], "pacegate bench resp://127.0.0.1:6380 --pipeline 16"),
    ] {
        let finished = run(args, b"");
        assert_eq!((finished.code, &*finished.stderr), (Some(0), ""), "{args:?}");
        let (_, examples) = finished.stdout.split_once("\nExamples:\n").unwrap();
        assert!(examples.contains(example), "{examples}");
    }
}

#[test]
fn check_help_says_that_state_is_not_kept() {
    let finished = run(&["check", "--help"], b"");
    let words: Vec<_> = finished.stdout.split_whitespace().collect();
    let text = words.join(" ");
    assert!(text.contains("they start empty and are lost when the command exits"), "{text}");
}

#[test]
fn the_version_is_that_of_the_package() {
    let finished = run(&["--version"], b"");
    assert_eq!(finished.stdout, concat!("pacegate ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// Completions and manual pages come from the same definitions as `--help`, so no command is missing.
#[test]
fn every_command_has_completions_and_a_manual_page() {
    let help = run(&["--help"], b"").stdout;
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let words = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let commands: Vec<&str> = words.filter(|word| !["", "help"].contains(word)).collect();
    assert!(commands.contains(&"serve"), "{commands:?}");

    let folder = tempfile::tempdir().unwrap();
    let written = run(&["man", "--dir", folder.path().to_str().unwrap()], b"");
    assert_eq!((written.code, &*written.stderr), (Some(0), ""));
    let scripts = ["bash", "zsh", "fish", "elvish", "powershell"].map(|shell| {
        let printed = run(&["completions", shell], b"");
        assert_eq!((printed.code, &*printed.stderr), (Some(0), ""), "{shell}");
        printed.stdout
    });
    for command in commands {
        let page = std::fs::read_to_string(folder.path().join(format!("pacegate-{command}.1")));
        let page = page.unwrap();
        assert!(page.contains(&format!(".TH pacegate-{command} 1")), "{page}");
        assert_eq!(run(&["man", command], b"").stdout, page);
        assert!(scripts.iter().all(|script| script.contains(command)), "{command}");
    }
}

#[test]
fn an_unknown_manual_page_is_rejected() {
    let finished = run(&["man", "dance"], b"");
    let expected = "error: cannot print the page: unknown page pacegate-dance\n\
                    hint: use a command from `pacegate --help`\n";
    assert_eq!((finished.code, &*finished.stderr), (Some(2), expected));
}
