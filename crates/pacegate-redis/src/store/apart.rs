//! All or nothing over several servers of a cluster, or over one key under several limits, the weaker way: charge one
//! after the other, and give back what was charged if a later one denies. In between, others may be denied what is then
//! given back.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use pacegate::{StoreError, Timestamp, algorithm::Outcome};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use super::{Inner, Wants, gone};
use crate::{batch::Answer, cell::Want, wire::Action};

/// A want that was charged, and when by the server's time.
type Charged = (usize, u64);

/// What is known of a request so far.
#[derive(Debug)]
struct Known {
    /// One for each want.
    outcomes: Vec<Outcome>,
    denied: bool,
}

impl Inner {
    /// The charge is a task of its own: what has to be given back is, also when nobody waits for the answer any more.
    /// Once one server has denied, the request is denied, however long the others take to say what they would have.
    pub(super) async fn charge_apart(
        self: Arc<Self>,
        wants: Wants,
    ) -> Result<Vec<Outcome>, StoreError> {
        let (deadline, runtime) = (self.common.deadline, self.runtime());
        // Dropped when the caller has its answer or stops waiting.
        let (caller, _waits) = oneshot::channel();
        // What is not known of a request that is denied anyway: nothing is left.
        let outcomes = vec![Outcome::admitted(0, Duration::ZERO); wants.len()];
        let known = Arc::new(Mutex::new(Known { outcomes, denied: false }));
        let charging = runtime.spawn(self.charge_each_part(wants, known.clone(), caller));
        let failed = match timeout(deadline, charging).await {
            Ok(Ok(Ok(()))) => return Ok(known.lock().outcomes.clone()),
            Ok(Ok(Err(error))) => return Err(error),
            Ok(Err(_)) => gone(),
            Err(_) => StoreError::TimedOut,
        };
        let known = known.lock();
        if known.denied { Ok(known.outcomes.clone()) } else { Err(failed) }
    }

    async fn charge_each_part(
        self: Arc<Self>,
        wants: Wants,
        known: Arc<Mutex<Known>>,
        caller: oneshot::Sender<()>,
    ) -> Result<(), StoreError> {
        let mut charged: Vec<Charged> = Vec::new();
        let mut groups = groups(&wants).into_iter();
        for group in groups.by_ref() {
            let answer = match self.ask_for(&caller, part(&wants, &group)).await {
                Ok(answer) => answer,
                Err(error) => {
                    if caller.is_closed() && may_have_run(&error) {
                        // The server may have taken these permits after the caller returned them.
                        charged.extend(permits(&wants, &group));
                    }
                    // The failure mode decides: nobody need wait for this.
                    let runtime = self.runtime();
                    runtime.spawn(async move { self.give_back(&wants, &charged).await });
                    return Err(error);
                }
            };
            let admitted = |n: usize| answer.outcomes.get(n).is_some_and(Outcome::is_admitted);
            let fits = |(n, &place): (usize, &usize)| admitted(n) || !wants[place].enforced;
            let denied = !group.iter().enumerate().all(fits);
            known.lock().tell(&group, &answer.outcomes);
            if denied {
                known.lock().deny(&wants, &charged);
                let rest: Vec<_> = groups.collect();
                join(self.give_back(&wants, &charged), self.look(&wants, &rest, &known)).await;
                let charged: Vec<_> = charged.iter().map(|&(place, _)| vec![place]).collect();
                self.look(&wants, &charged, &known).await;
                return Ok(());
            }
            let taken = group.iter().enumerate().filter(|(n, _)| admitted(*n));
            charged.extend(taken.map(|(_, &place)| (place, answer.now)));
        }
        if caller.is_closed() {
            // The caller returned its permits before the last of them was taken.
            charged.retain(|&(place, _)| wants[place].limit.algorithm().holds_permits());
            self.give_back(&wants, &charged).await;
        }
        Ok(())
    }

    /// Charges a part of a request, unless the caller has stopped waiting.
    async fn ask_for(
        &self,
        caller: &oneshot::Sender<()>,
        wants: Wants,
    ) -> Result<Answer, StoreError> {
        if caller.is_closed() {
            return Err(StoreError::TimedOut);
        }
        self.ask(wants, 1, None).await
    }

    /// As far as it can be: what cannot be given back stays charged, which admits less, never more. What was charged in
    /// a window that is over is not given back, for it would be taken from the next.
    ///
    /// A bucket gets all of it back: what it has refilled meanwhile it would have refilled anyway, unless it was full.
    /// To keep that much back would let denied requests use up a fast bucket.
    async fn give_back(&self, wants: &[Want], charged: &[Charged]) {
        let each = charged.iter().map(async |&(place, now)| {
            let want = wants[place];
            let action = match want.limit.algorithm() {
                // A failure is retried.
                algorithm if algorithm.holds_permits() => return drop(self.release(want).await),
                algorithm if algorithm.windows() > 0 => Action::Return { drawn: now },
                _ => Action::Refund,
            };
            drop(self.amend(want, Some(action)).await);
        });
        join_all(each).await;
    }

    /// Asks what would be said of each group. That the request is denied stands, even if this cannot be told.
    async fn look(&self, wants: &[Want], groups: &[Vec<usize>], known: &Mutex<Known>) {
        let each = groups.iter().map(async |group| {
            if let Ok(answer) = self.ask(part(wants, group), 0, None).await {
                known.lock().tell(group, &answer.outcomes);
            }
        });
        join_all(each).await;
    }
}

impl Known {
    fn tell(&mut self, group: &[usize], outcomes: &[Outcome]) {
        for (&place, &outcome) in group.iter().zip(outcomes) {
            self.outcomes[place] = outcome;
        }
    }

    /// What was charged is going to be given back: it is as good as untouched.
    fn deny(&mut self, wants: &[Want], charged: &[Charged]) {
        self.denied = true;
        for &(place, _) in charged {
            let (want, outcome) = (&wants[place], self.outcomes[place]);
            let remaining = outcome.remaining().saturating_add(want.cost);
            let remaining = remaining.min(want.limit.capacity());
            let untouched = Outcome::admitted(remaining, outcome.reset_after());
            let decided_at = outcome.decided_at().unwrap_or(Timestamp::EPOCH);
            self.outcomes[place] = untouched.with_decided_at(decided_at);
        }
    }
}

/// The permits of a group, to be released: when they were charged does not matter.
fn permits(wants: &[Want], group: &[usize]) -> impl Iterator<Item = Charged> {
    let is_permit = |place: &&usize| wants[**place].limit.algorithm().holds_permits();
    group.iter().filter(is_permit).map(|&place| (place, 0))
}

fn may_have_run(error: &StoreError) -> bool {
    use StoreError::{Failed, Interrupted, TimedOut};
    matches!(error, TimedOut | Interrupted(_) | Failed(_))
}

fn part(wants: &[Want], group: &[usize]) -> Wants {
    group.iter().map(|&place| wants[place]).collect()
}

/// The places of wants that share a slot, no two of which have one cell under different limits: one of them would be
/// decided by the other's. Those on which nothing depends come last.
fn groups(wants: &[Want]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(u16, Vec<usize>)> = Vec::new();
    for (place, want) in wants.iter().enumerate() {
        let slot = want.cell.slot();
        let agrees =
            |&other: &usize| wants[other].cell != want.cell || wants[other].limit == want.limit;
        let fits =
            |(other, group): &&mut (u16, Vec<usize>)| *other == slot && group.iter().all(agrees);
        match groups.iter_mut().find(fits) {
            Some((_, group)) => group.push(place),
            None => groups.push((slot, vec![place])),
        }
    }
    groups.sort_by_key(|(_, group)| !group.iter().any(|&place| wants[place].enforced));
    groups.into_iter().map(|(_, group)| group).collect()
}
