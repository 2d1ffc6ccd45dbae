//! What the compiler says. `TRYBUILD=overwrite cargo test -p pacegate-macros ui` writes what it says now.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
