//! Several tenants in one server: a flood from one of them leaves the others their share of the memory.

use std::net::TcpStream;

use pacegate_testkit::servers::{Client, Reply};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

const CONFIG: &str = "
store: { max_keys: 1200 }
policies:
  - { name: shop, domain: shop, per: [user], limit: 1/day }
  - { name: bank, domain: bank, per: [user], limit: 1/day }
";
const KEYS: &str = "keys:
  - { name: boss, file: boss.key, scope: admin }
  - { name: shop, file: shop.key, domains: [shop] }
  - { name: bank, file: bank.key, domains: [bank] }
";
const BOSS: &str = "the-key-of-the-boss";
const SHOP: &str = "the-key-of-the-shop";
const BANK: &str = "the-key-of-the-bank";

fn start(text: &str) -> (Folder, Service) {
    let folder = Folder::with_config(text);
    for (file, key) in [("boss.key", BOSS), ("shop.key", SHOP), ("bank.key", BANK)] {
        folder.replace(file, key);
    }
    let service = Service::start(&["--config", &folder.config()]);
    (folder, service)
}

/// Checks a user of a domain. Returns the status and the source of the decision.
fn check(http: &mut Http<TcpStream>, key: Option<&str>, domain: &str, user: &str) -> (u16, String) {
    let body = format!(r#"{{"domain": "{domain}", "attributes": {{"user": "{user}"}}}}"#);
    let answer = http.check(key, &body).unwrap();
    (answer.status, answer.json()["source"].as_str().unwrap_or_default().to_owned())
}

fn resp(service: &Service) -> Client {
    Client::connect(&service.address("resp").to_string()).unwrap()
}

fn store() -> String {
    "store".to_owned()
}

#[test]
fn a_key_for_one_domain_cannot_take_the_room_of_another() {
    let (_folder, service) = start(&format!("{CONFIG}{KEYS}"));
    let mut http = Http::connect(service.address("http")).unwrap();
    for user in 0..1_300 {
        check(&mut http, Some(SHOP), "shop", &format!("stranger {user}"));
    }
    let beyond = check(&mut http, Some(SHOP), "shop", "one more");
    assert_eq!(beyond, (429, "overflow".to_owned()), "the shop has used up its share");
    for user in 0..300 {
        let answer = check(&mut http, Some(BANK), "bank", &format!("client {user}"));
        assert_eq!(answer, (200, store()), "client {user} of the bank");
    }
    let mut boss = resp(&service);
    assert_eq!(boss.command(&["AUTH", BOSS]).unwrap().text(), "OK");
    let cleared = boss.command(&["PACEGATE.CLEAR", "DOMAIN", "shop"]).unwrap();
    assert!(matches!(cleared, Reply::Int(900)), "{cleared:?}");
    assert_eq!(check(&mut http, Some(SHOP), "shop", "one more"), (200, store()), "room again");
    assert_eq!(
        check(&mut http, Some(BANK), "bank", "client 7"),
        (429, store()),
        "the counter is unchanged"
    );
}

/// Inline limits, all of them different and each as long as it may be, fill their share and its overflow budgets.
#[test]
fn inline_limits_cannot_take_the_room_of_domains() {
    let (_folder, service) = start(CONFIG);
    let mut cell = resp(&service);
    // A bucket of 31 days minus `n` seconds, so that each has its own overflow counter.
    let words = |n: usize| {
        let period = (31 * 86_400 - n).to_string();
        ["CL.THROTTLE".to_owned(), format!("k{n}"), "0".to_owned(), "1".to_owned(), period]
    };
    for n in 0..6_000 {
        let words = words(n);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cell.command(&words).unwrap();
    }
    let mut http = Http::connect(service.address("http")).unwrap();
    for domain in ["shop", "bank"] {
        for user in 0..200 {
            let answer = check(&mut http, None, domain, &format!("client {user}"));
            assert_eq!(answer, (200, store()), "client {user} of the {domain}");
        }
        let beyond = check(&mut http, None, domain, "beyond its share");
        assert_eq!(beyond, (200, "overflow".to_owned()), "{domain}");
    }
    let metrics = http.get("/metrics").unwrap().body;
    for line in [
        r#"pacegate_store_share_keys{share="inline",domain=""} 800"#,
        r#"pacegate_store_share_keys{share="domain",domain="bank"} 200"#,
        r#"pacegate_store_share_guaranteed_keys{share="domain",domain="shop"} 200"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let cleared = cell.command(&["PACEGATE.CLEAR", "POLICY", "inline"]).unwrap();
    assert!(matches!(cleared, Reply::Int(800)), "{cleared:?}");
    assert_eq!(check(&mut http, None, "bank", "a late client").1, "store");
}

#[test]
fn resp_rejects_invalid_clears_and_long_limits() {
    let (_folder, service) = start(CONFIG);
    let mut client = resp(&service);
    let mut said = |words: &[&str]| client.command(words).unwrap().text();
    let usage =
        "ERR syntax error: expected PACEGATE.CLEAR POLICY name, or PACEGATE.CLEAR DOMAIN name";
    for words in
        [&["PACEGATE.CLEAR"][..], &["PACEGATE.CLEAR", "POLICY"], &["PACEGATE.CLEAR", "KEY", "k"]]
    {
        assert_eq!(said(words), usage, "{words:?}");
    }
    let unknown = said(&["PACEGATE.CLEAR", "POLICY", "unheard-of"]);
    assert_eq!(unknown, "ERR unknown policy");
    let day = 86_400;
    for command in ["CL.THROTTLE", "THROTTLE"] {
        let long = said(&[command, "k", "100", "1", &day.to_string()]);
        assert!(long.contains("takes longer than 31 days to reset"), "{command}: {long}");
    }
    let long = said(&["PACEGATE.CHECK", "KEY", "k", "LIMIT", "1/60d"]);
    assert!(long.contains("takes longer than 31 days to reset"), "{long}");
}
