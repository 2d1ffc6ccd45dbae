//! Runs the doctor on real servers with problems.

use std::time::Duration;

use pacegate_redis::{
    ACL_RULES, RedisUrl,
    doctor::{Finding, Level, Options, Part, Report, examine},
};
use pacegate_testkit::servers::{
    Certificates, Cluster, Flavor, Proxy, Sentinels, Server, ServerOptions, eventually,
};

use crate::kit::{PATIENT, runtime};

/// Returns the report with a long deadline, because every server is slow on a busy machine.
fn report(url: &str) -> Report {
    report_within(url, PATIENT)
}

fn report_within(url: &str, deadline: Duration) -> Report {
    let url: RedisUrl = url.parse().unwrap();
    let report = runtime().block_on(examine(&url, &Options::default().deadline(deadline)));
    for finding in report.findings() {
        assert_eq!(finding.advice.is_none(), finding.level == Level::Good, "{finding:?}");
        assert!(!format!("{finding:?}").contains("secret"), "{finding:?}");
    }
    report
}

fn healthy(flavor: Flavor) -> ServerOptions {
    Server::options(flavor).arg("maxmemory", "100mb").arg("maxmemory-policy", "noeviction")
}

/// Returns all findings above a notice, except for vulnerabilities of the installed version.
fn bad(report: &Report) -> Vec<(&'static str, Level)> {
    let bad = report.findings().filter(|it| it.level > Level::Notice && it.subject != "version");
    bad.map(|finding| (finding.subject, finding.level)).collect()
}

#[track_caller]
fn found<'a>(report: &'a Report, subject: &str) -> &'a Finding {
    let found = report.findings().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject}: {report:#?}"))
}

#[track_caller]
fn advice<'a>(report: &'a Report, subject: &str, level: Level) -> &'a str {
    let finding = found(report, subject);
    assert_eq!(finding.level, level, "{finding:?}");
    finding.advice.as_deref().unwrap_or_default()
}

#[test]
fn a_healthy_server_has_no_problems_and_keeps_no_keys() {
    for flavor in Flavor::ALL {
        let server = healthy(flavor).arg("appendonly", "yes").start();
        let report = report(&server.url());
        assert_eq!(bad(&report), [], "{report:#?}");
        for subject in
            ["reach", "role", "cluster", "replicas", "eviction", "memory", "persistence", "latency"]
        {
            assert_eq!(found(&report, subject).level, Level::Good, "{subject}");
        }
        assert_eq!(found(&report, "clock").level, Level::Good);
        assert_eq!(found(&report, "script").level, Level::Good);
        // The default user has all permissions.
        let line = advice(&report, "rights", Level::Notice);
        assert!(line.starts_with("ACL SETUSER pacegate reset on >PASSWORD ~pg:* -@all"), "{line}");
        assert!(report.is_reached());
        let name = report.servers[0].name.as_deref().unwrap().to_lowercase();
        assert!(name.starts_with(&format!("{flavor} ")), "{name}");
        assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    }
}

#[test]
fn every_eviction_policy_is_a_problem() {
    let server = healthy(Flavor::Redis).start();
    for policy in [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-random",
        "volatile-ttl",
    ] {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let report = report(&server.url());
        assert_eq!(bad(&report), [("eviction", Level::Problem)], "{policy}");
        let finding = found(&report, "eviction");
        assert!(finding.text.starts_with(&format!("`{policy}`: ")), "{finding:?}");
        assert!(finding.text.contains("a flood of keys resets the counters of other clients"));
        let advice = advice(&report, "eviction", Level::Problem);
        assert!(advice.starts_with("CONFIG SET maxmemory-policy noeviction"), "{advice}");
    }
}

#[test]
fn evicted_keys_are_reported() {
    let options = Server::options(Flavor::Valkey).arg("maxmemory", "4mb");
    let server = options.arg("maxmemory-policy", "allkeys-random").start();
    let flood = "for i = 1, 60000 do redis.call('SET', 'k' .. i, string.rep('x', 100)) end";
    server.command(&["EVAL", flood, "0"]);
    eventually(PATIENT, "keys are evicted", || server.info("evicted_keys").unwrap() != "0");
    let report = report(&server.url());
    let advice = advice(&report, "evicted", Level::Problem);
    assert!(advice.contains("noeviction"), "{advice}");
}

#[test]
fn missing_memory_limits_and_persistence_are_reported() {
    let server = Server::start(Flavor::Redis);
    let report = report(&server.url());
    assert_eq!(bad(&report), [("memory", Level::Warning)]);
    assert!(advice(&report, "memory", Level::Warning).starts_with("CONFIG SET maxmemory 1gb"));
    assert!(advice(&report, "persistence", Level::Notice).contains("appendfsync everysec"));
}

#[test]
fn a_replica_is_a_problem() {
    for flavor in Flavor::ALL {
        let master = healthy(flavor).start();
        let replica = healthy(flavor).replica_of(&master).start();
        let online = || master.info("slave0").is_some_and(|it| it.contains("state=online"));
        eventually(PATIENT, "the replica follows", online);
        let asked = report(&replica.url());
        assert_eq!(bad(&asked), [("role", Level::Problem)]);
        assert!(advice(&asked, "role", Level::Problem).contains(&master.url()));
        assert_eq!(found(&asked, "script").level, Level::Notice, "not tried");

        let asked = report(&master.url());
        assert_eq!(bad(&asked), []);
        assert_eq!(found(&asked, "replicas").text, "1 replica, up to date");
    }
}

#[test]
fn every_master_of_a_cluster_is_checked() {
    for flavor in Flavor::ALL {
        let limited = |options: ServerOptions| options.arg("maxmemory", "100mb");
        let cluster = Cluster::start_with(flavor, 3, 0, limited);
        let asked = report(&cluster.url());
        assert_eq!(asked.servers.len(), 3);
        for (server, node) in asked.servers.iter().zip(cluster.nodes()) {
            assert_eq!((&server.address, server.part), (&node.address(), Part::ClusterMaster));
            let script = server.findings.iter().find(|finding| finding.subject == "script");
            assert_eq!(script.unwrap().level, Level::Good, "{script:?}");
            let calls = node.info("cmdstat_eval").unwrap_or_default();
            assert!(!calls.is_empty(), "every master was tried");
            assert_eq!(node.command(&["DBSIZE"]).int(), 0);
        }
        assert_eq!(found(&asked, "slots").level, Level::Good);
        assert_eq!(bad(&asked), [("replicas", Level::Warning); 3], "{asked:#?}");

        let one = report(&cluster.nodes()[0].url());
        let advice = advice(&one, "cluster", Level::Problem);
        assert_eq!(advice, format!("use redis+cluster://{}", cluster.nodes()[0].address()));
    }
}

#[test]
fn a_cluster_without_a_master_is_reported() {
    let mut cluster = Cluster::start(Flavor::Valkey, 3, 0);
    let url = cluster.url();
    cluster.nodes_mut()[1].kill();
    let report = report(&url);
    assert!(report.is_reached());
    assert_eq!(report.worst(), Level::Problem);
    let gone = report.servers.iter().find(|server| !server.is_reached).unwrap();
    assert_eq!(gone.address, cluster.nodes()[1].address());
    assert_eq!(gone.findings[0].subject, "reach");
}

#[test]
fn a_single_server_is_not_a_cluster() {
    let server = healthy(Flavor::Redis).start();
    let report = report(&format!("redis+cluster://{}", server.address()));
    let at_server = report.servers[0].findings.iter().find(|it| it.subject == "cluster").unwrap();
    assert_eq!(at_server.level, Level::Problem);
    let advice = at_server.advice.as_deref().unwrap();
    assert!(advice.starts_with(&format!("use redis://{}", server.address())), "{advice}");
}

#[test]
fn sentinels_and_their_master_are_checked() {
    for flavor in Flavor::ALL {
        let sentinels = Sentinels::start(flavor);
        let asked = report(&sentinels.url());
        let parts: Vec<Part> = asked.servers.iter().map(|server| server.part).collect();
        assert_eq!(parts, [Part::Master, Part::Sentinel, Part::Sentinel, Part::Sentinel]);
        assert_eq!(asked.servers[0].address, sentinels.master().address());
        assert_eq!(bad(&asked), [("memory", Level::Warning)], "{asked:#?}");
        assert_eq!(found(&asked, "script").level, Level::Good);
        assert_eq!(found(&asked, "quorum").level, Level::Good);

        let stray = report(&sentinels.sentinels()[0].url());
        let advice = advice(&stray, "role", Level::Problem);
        assert!(advice.starts_with("use redis+sentinel://"), "{advice}");
        let nameless = report(&sentinels.url().replace("mymaster", "other"));
        assert!(!nameless.is_reached());
        assert_eq!(nameless.setup[0].level, Level::Problem);
    }
}

#[test]
fn a_slow_server_is_reported() {
    let server = healthy(Flavor::Redis).start();
    let proxy = Proxy::start(server.address());
    proxy.set_delay(Duration::from_millis(30));
    let asked = report_within(&proxy.url(), Duration::from_millis(20));
    assert_eq!(bad(&asked), [("latency", Level::Problem)], "{asked:#?}");
    let asked = report_within(&proxy.url(), Duration::from_millis(80));
    assert!(advice(&asked, "latency", Level::Warning).contains("SLOWLOG GET 10"));
}

#[test]
fn missing_permissions_of_the_doctor_are_notices() {
    for flavor in Flavor::ALL {
        let server = healthy(flavor)
            .acl("default off")
            .acl(&format!("pacegate on >secret ~pg:* {ACL_RULES}"))
            .acl(&format!("blind on >secret ~pg:* {ACL_RULES} -info -time"))
            .acl(&format!("poor on >secret ~pg:* {ACL_RULES} -zadd +acl"))
            .start();
        let url = |user: &str| format!("redis://{user}:secret@{}", server.address());

        let asked = report(&url("pacegate"));
        assert_eq!(bad(&asked), []);
        assert_eq!(found(&asked, "script").level, Level::Good);
        assert_eq!(found(&asked, "persistence").text, "not checked: no permission for CONFIG GET");
        let line = advice(&asked, "persistence", Level::Notice);
        assert!(line.starts_with("allow it with ACL SETUSER pacegate +config|get"), "{line}");
        assert_eq!(found(&asked, "rights").text, "not checked: no permission for ACL WHOAMI");

        let asked = report(&url("blind"));
        assert_eq!(found(&asked, "eviction").text, "not checked: no permission for INFO");
        assert_eq!(found(&asked, "role").level, Level::Notice);
        assert_eq!(found(&asked, "clock").text, "not checked: no permission for TIME");

        let asked = report(&url("poor"));
        let line = advice(&asked, "rights", Level::Problem);
        assert_eq!(line, "ACL SETUSER poor ~pg:* +zadd");
        assert!(found(&asked, "script").text.contains("1/minute concurrency"));
    }
}

#[test]
fn a_user_with_exactly_the_needed_permissions_is_good() {
    for flavor in Flavor::ALL {
        let rules = format!("pacegate on >secret ~pg:* {ACL_RULES} +acl|whoami +acl|dryrun");
        let server = healthy(flavor).acl("default off").acl(&rules).start();
        let report = report(&format!("redis://pacegate:secret@{}", server.address()));
        let rights = found(&report, "rights");
        assert_eq!(rights.level, Level::Good, "{rights:?}");
    }
}

#[test]
fn missing_and_wrong_passwords_are_explained() {
    for flavor in Flavor::ALL {
        let server = healthy(flavor).password("right").start();
        for (login, hint) in [("", "requires a password"), (":secret@", "check user and password")]
        {
            let report = report(&format!("redis://{login}{}", server.address()));
            assert!(!report.is_reached());
            let advice = advice(&report, "reach", Level::Problem);
            assert!(advice.contains(hint), "{flavor}: {:?}", found(&report, "reach"));
        }
    }
}

#[test]
fn an_unreachable_server_and_tls_errors_are_explained() {
    let certificates = Certificates::new();
    let mut server = healthy(Flavor::Redis).tls(&certificates).start();
    let with_ca = format!("{}?ca={}", server.url(), certificates.ca().display());
    assert_eq!(bad(&report(&with_ca)), []);
    let unverified = report(&server.url());
    assert!(advice(&unverified, "reach", Level::Problem).contains("?ca=FILE"));
    let plain = report(&server.url().replace("rediss", "redis"));
    assert!(advice(&plain, "reach", Level::Problem).contains("rediss:// is used for TLS"));
    server.kill();
    let gone = report(&with_ca);
    assert!(!gone.is_reached());
    let advice = advice(&gone, "reach", Level::Problem);
    assert!(advice.starts_with("check that a server is running at 127.0.0.1:"), "{advice}");
}
