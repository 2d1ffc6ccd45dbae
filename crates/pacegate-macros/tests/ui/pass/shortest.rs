//! Nothing is set up.

use pacegate::Denied;
use pacegate_macros::rate_limit;

#[rate_limit("2/day", key = user)]
fn greet(user: &str) -> Result<String, Denied> {
    Ok(format!("hello {user}"))
}

#[rate_limit("2/day", key = user)]
async fn later(user: &str) -> Result<String, Denied> {
    greet(user)
}

fn main() {
    assert!(greet("alice").is_ok() && greet("alice").is_ok());
    let denied = greet("alice").unwrap_err().decision();
    let name = format!("{}.greet", module_path!());
    assert_eq!(denied.policy().unwrap().as_str(), name);
    assert!(greet("bob").is_ok());
    let calls = ["eve"; 3].map(|user| pollster::block_on(later(user)).is_ok());
    assert_eq!(calls, [true, true, false]);
}
