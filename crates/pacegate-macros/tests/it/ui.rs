//! Errors of the compiler. `TRYBUILD=overwrite cargo test -p pacegate-macros ui` updates the expected output.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
