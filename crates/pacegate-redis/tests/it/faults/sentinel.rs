//! Failovers by sentinels.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use pacegate_testkit::servers::{Flavor, Sentinels, Server, eventually};

use super::{Limiters, RETURN, now, scripts_run};
use crate::kit::PATIENT;

/// Maximum time for which the old master is used after a failover. The sentinels are queried four times a second.
const FOLLOW: Duration = Duration::from_millis(600);

fn names(sentinel: &Server) -> String {
    let address = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
    address.items().iter().map(|part| part.text()).collect::<Vec<_>>().join(":")
}

/// The old master accepts writes until its sentinels reconfigure it, but gets none from the store.
#[test]
fn a_failover_is_followed_at_once() {
    for flavor in Flavor::ALL {
        let all = Sentinels::start(flavor);
        let limiters = Limiters::connect(&all.url());
        for sentinel in all.sentinels() {
            // The sentinels wait four times as long before they turn the old master into a replica.
            sentinel.command(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "2000"]);
        }
        let load = limiters.load();
        load.run_for(Duration::from_millis(300));
        let (leader, old) = (&all.sentinels()[0], all.master());
        eventually(30 * RETURN, "another master is named", || {
            // Rejected during a failover, and aborted if the replica was not checked for a while.
            leader.command(&["SENTINEL", "FAILOVER", "mymaster"]);
            names(leader) != old.address()
        });
        let switched = now();
        let (mut last, mut used) = (scripts_run(old), switched);
        assert!(last > 0);
        eventually(2 * RETURN, "some time has passed", || {
            let run = scripts_run(old);
            if run > last {
                (last, used) = (run, now());
            }
            switched.elapsed() > RETURN
        });
        let role = old.info("role").unwrap();
        println!("{flavor}: last used {:?} after the switch, then a {role} still", used - switched);
        assert_eq!(role.trim(), "master", "it would have taken writes all the time");
        assert!(used - switched < FOLLOW, "used for {:?}", used - switched);
        assert!(!limiters.is_degraded());
        load.end(&limiters).assert_timely("failover");
        limiters.assert_exact();
        limiters.assert_window_exact(all.replica());
    }
}

/// The procedure of docs/operations.md for planned failovers: with writes paused, none is lost.
#[test]
fn a_failover_with_paused_writes_loses_nothing() {
    for flavor in Flavor::ALL {
        let (admitted, counted) = planned_failover(flavor, |master| {
            let pause = master.command(&["CLIENT", "PAUSE", "10000", "WRITE"]);
            assert_eq!(pause.text(), "OK");
            let offset = || master.info("master_repl_offset").unwrap().trim().to_owned();
            let replica = || master.info("slave0").unwrap();
            let has_all = || replica().contains(&format!("offset={},", offset()));
            eventually(RETURN, "the replica has all writes", has_all);
        });
        println!("{flavor}: {admitted} admitted, {counted} counted by the new master");
        assert!(counted >= admitted, "{} were forgotten", admitted - counted);
    }
}

/// Fails a master over while one key is charged constantly. Returns the admitted units, and those counted by the new
/// master.
fn planned_failover(flavor: Flavor, prepare: impl Fn(&Server)) -> (u64, u64) {
    let all = Sentinels::start(flavor);
    let limiters = Limiters::connect(&all.url());
    let (going, admitted) = (AtomicBool::new(true), AtomicU64::new(0));
    let progress = || {
        let start = admitted.load(SeqCst);
        eventually(PATIENT, "requests are admitted", || admitted.load(SeqCst) > start + 100);
    };
    let (leader, old) = (&all.sentinels()[0], all.master());
    std::thread::scope(|scope| {
        let charging = scope.spawn(|| {
            while going.load(SeqCst) {
                let decision = limiters.check(&limiters.closed, "planned");
                let is_charged = decision.is_allowed() && !decision.is_degraded();
                admitted.fetch_add(u64::from(is_charged), SeqCst);
            }
        });
        progress();
        prepare(old);
        eventually(30 * RETURN, "another master is named", || {
            leader.command(&["SENTINEL", "FAILOVER", "mymaster"]);
            names(leader) != old.address()
        });
        limiters.wait_for_store(PATIENT);
        progress();
        going.store(false, SeqCst);
        charging.join().unwrap();
    });
    let mut counted = None;
    eventually(PATIENT, "the new master answers", || {
        let look = limiters.runtime.block_on(limiters.closed.peek("planned")).unwrap();
        counted = (!look.is_degraded()).then(|| 1_000_000 - look.remaining());
        counted.is_some()
    });
    (admitted.into_inner(), counted.unwrap())
}

/// A master that hangs is replaced, and not used again when it resumes.
#[test]
fn an_old_master_resumes() {
    for flavor in Flavor::ALL {
        let all = Sentinels::start(flavor);
        let limiters = Limiters::connect(&all.url());
        for sentinel in all.sentinels() {
            sentinel.command(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "1000"]);
        }
        let load = limiters.load();
        load.run_for(Duration::from_millis(300));
        all.master().pause();
        limiters.wait_until_degraded();
        let named = || all.sentinels().iter().any(|one| names(one) == all.replica().address());
        // It takes several rounds if each sentinel votes for itself.
        eventually(30 * RETURN, "another master is named", named);
        let promoted = || all.replica().info("role").unwrap().trim() == "master";
        eventually(RETURN, "it is the master", promoted);
        let back = limiters.wait_until_back();
        all.master().resume();
        // Commands sent before it hung run now.
        load.run_for(Duration::from_millis(100));
        let run = scripts_run(all.master());
        load.run_for(RETURN);
        assert_eq!(scripts_run(all.master()), run, "used again");
        println!("{flavor}: back {back:?} after the switch");
        let log = load.end(&limiters);
        log.assert_timely("a master replaced");
        log.assert_modes_hold();
        limiters.assert_exact();
        limiters.assert_window_exact(all.replica());
    }
}
