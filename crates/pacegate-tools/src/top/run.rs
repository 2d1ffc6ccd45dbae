//! Runs the view on a real terminal, until a key or a signal ends it.

use std::{io, process, thread, time::Duration};

use crossterm::{
    event::{self, Event},
    terminal::disable_raw_mode,
};
use ratatui::DefaultTerminal;
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{data::Live, view::View};

/// Interval at which the screen is redrawn, to update elapsed times.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);

/// Time to restore the terminal after a signal, before the process is forced to exit.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The terminal in raw mode; restored on drop. Panics are also covered by a hook.
struct Screen(DefaultTerminal);

/// Shows a view and fetches new data at the interval `every`, until a key or a signal ends it.
pub async fn run<A>(mut view: View, every: Duration, ask: A) -> io::Result<()>
where
    A: AsyncFn(u64) -> anyhow::Result<Live> + Clone + 'static,
{
    let mut end = listen()?;
    let mut screen = Screen(ratatui::try_init()?);
    let mut events = events();
    let begun = Instant::now();
    let (mut asks, mut redraws) = (interval(every), interval(REDRAW_INTERVAL));
    asks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    redraws.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (answers, mut answered) = mpsc::channel(1);
    let mut is_asking = false;
    loop {
        view.pass(begun.elapsed());
        screen.0.draw(|frame| view.draw(frame))?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Key(key)) if view.press(key) => return Ok(()),
                // The terminal was closed.
                None => return Ok(()),
                Some(_) => {}
            },
            _ = asks.tick(), if view.wants_more() && !is_asking => {
                is_asking = true;
                let (ask, answers, since) = (ask.clone(), answers.clone(), view.since());
                tokio::task::spawn_local(async move {
                    // Sending fails only if the view has already ended.
                    let _ = answers.send(ask(since).await).await;
                });
            }
            Some(answer) = answered.recv() => {
                is_asking = false;
                match answer {
                    Ok(live) => view.take(live),
                    Err(error) => view.fail(format!("{error:#}")),
                }
            }
            _ = redraws.tick() => {}
            _ = &mut end => return Ok(()),
        }
    }
}

/// Returns a receiver that resolves on a signal. A separate thread waits for signals, because the main thread
/// may be blocked in a write to a stopped terminal.
fn listen() -> io::Result<oneshot::Receiver<()>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let end = {
        let _inside = runtime.enter();
        exit_signal()?
    };
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        runtime.block_on(async {
            end.await;
            // Sending fails only if the view has already ended.
            let _ = sender.send(());
            sleep(RESTORE_TIMEOUT).await;
        });
        force_exit();
    });
    Ok(receiver)
}

/// Exits without writing to the terminal.
#[expect(
    clippy::disallowed_methods,
    clippy::exit,
    reason = "`main` cannot return: it is blocked in a write"
)]
fn force_exit() {
    // Ignore errors: the terminal may be closed.
    drop(disable_raw_mode());
    process::exit(1);
}

/// Reads key presses and size changes in a separate thread, until the receiver is dropped.
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

/// Listens for SIGINT, SIGTERM and SIGHUP from now on. The future ends with the first of them.
#[cfg(unix)]
fn exit_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let all = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [interrupt, terminate, hangup] = all.map(signal);
    let (mut interrupt, mut terminate, mut hangup) = (interrupt?, terminate?, hangup?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Listens for Ctrl-Break and the end of the console from now on. In raw mode, Ctrl-C is a key.
#[cfg(windows)]
fn exit_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::windows::{ctrl_break, ctrl_close};

    let (mut stop, mut close) = (ctrl_break()?, ctrl_close()?);
    Ok(async move {
        tokio::select! {
            _ = stop.recv() => {}
            _ = close.recv() => {}
        }
    })
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
