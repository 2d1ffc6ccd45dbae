//! The view on a real terminal, until somebody has seen enough.

use std::{io, process, thread, time::Duration};

use crossterm::{
    event::{self, Event},
    terminal::disable_raw_mode,
};
use ratatui::DefaultTerminal;
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{data::Live, view::View};

/// Whether time has passed is looked at so often.
const BLINK: Duration = Duration::from_millis(250);

/// How long the end may take once a signal has come.
const GRACE: Duration = Duration::from_secs(1);

/// The screen as it was, once this is dropped: also by a panic, for which there is a hook besides.
struct Screen(DefaultTerminal);

/// What ends it from outside.
struct Ends([Signal; 3]);

/// Shows a view, and asks for what is new after every `every`, until a key or a signal ends it.
pub(crate) async fn run<A>(mut view: View, every: Duration, ask: A) -> io::Result<()>
where
    A: AsyncFn(u64) -> Result<Live, String> + Clone + 'static,
{
    let mut end = listen()?;
    let mut screen = Screen(ratatui::try_init()?);
    let mut events = events();
    let begun = Instant::now();
    let (mut asks, mut blinks) = (interval(every), interval(BLINK));
    asks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    blinks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (answers, mut answered) = mpsc::channel(1);
    let mut is_asking = false;
    loop {
        view.pass(begun.elapsed());
        screen.0.draw(|frame| view.draw(frame))?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if view.press(key) => return Ok(()),
                // The terminal is gone.
                None => return Ok(()),
                Some(_) => {}
            },
            _ = asks.tick(), if view.wants_more() && !is_asking => {
                is_asking = true;
                let (ask, answers, since) = (ask.clone(), answers.clone(), view.since());
                tokio::task::spawn_local(async move {
                    // Nobody waits for it any more if it is over.
                    let _ = answers.send(ask(since).await).await;
                });
            }
            Some(answer) = answered.recv() => {
                is_asking = false;
                match answer {
                    Ok(live) => view.take(live),
                    Err(error) => view.fail(error),
                }
            }
            _ = blinks.tick() => {}
            _ = &mut end => return Ok(()),
        }
    }
}

/// Tells when a signal comes. It is heard by a thread of its own: whoever writes to a terminal that takes nothing any
/// more would not hear it.
fn listen() -> io::Result<oneshot::Receiver<()>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut ends = {
        let _inside = runtime.enter();
        Ends::new()?
    };
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            ends.any().await;
            // Whoever does not listen any more is at its end already.
            let _ = tell.send(());
            sleep(GRACE).await;
        });
        give_up();
    });
    Ok(told)
}

/// Ends without what would have to be written.
#[expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "`main` cannot return: it is stuck in a write"
)]
fn give_up() {
    // The terminal may be gone.
    drop(disable_raw_mode());
    process::exit(1);
}

/// Keys and sizes, read by a thread of its own for as long as somebody wants them.
fn events() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Ends {
    fn new() -> io::Result<Self> {
        let all = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = all.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
