//! `latent top`: a live view of a server's metrics.

mod draw;
mod metrics;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use crate::args::TopArgs;
use crate::exit::ReportedProblems;
use crate::server::{ServerClient, Trouble, of_model};
use crate::{interrupt, output};
use anyhow::{Context, Result};
use draw::SpeedHistory;
use metrics::ScrapedMetrics;
use screen::TopScreen;
use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use view::{PhaseFigures, TopView};

/// Maximum bytes of the metrics.
const MAX_METRICS_BYTES: u64 = 8 << 20;

/// Interval of checks for keys and signals.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A server's metrics at one moment.
struct ServerReading {
    metrics: ScrapedMetrics,
    /// The model of `phases`, if the server has several.
    model: Option<String>,
    phases: Vec<PhaseFigures>,
    at: Instant,
}

/// A server and the timeout of a reading.
struct ServerSource {
    server: ServerClient,
    patience: Duration,
}

pub(super) fn run(args: &TopArgs) -> Result<()> {
    let server = ServerClient::new(&args.url, args.api_key_file.as_deref())?;
    let source = ServerSource { server, patience: Duration::from_secs_f64(args.timeout) };
    let interval = Duration::from_secs_f64(args.interval);
    if args.once || args.json || !stdout().is_terminal() {
        return snapshot(&source, interval, args.json);
    }
    watch(source, interval)
}

/// Prints one view.
fn snapshot(source: &ServerSource, interval: Duration, json: bool) -> Result<()> {
    // Neither the requests nor the sleep below poll for signals.
    let _at_once = interrupt::at_once();
    let before = read(source)?;
    // Rates need two readings.
    thread::sleep(interval);
    let now = read(source)?;
    let server = &source.server;
    let view = view(&now, Some(&before));
    if json {
        return output::json(&view.json(server.url()));
    }
    let title = draw::title(Some(&view), server.url());
    let lines = draw::lines(&view, &SpeedHistory::default(), output::width());
    output::multiline(&format!("{title}\n{}\n", lines.join("\n")))
}

fn view(now: &ServerReading, before: Option<&ServerReading>) -> TopView {
    let before = before.map(|before| (&before.metrics, now.at.duration_since(before.at)));
    let mut view = TopView::new(&now.metrics, before);
    view.phases.clone_from(&now.phases);
    view.phases_of.clone_from(&now.model);
    view
}

fn read(source: &ServerSource) -> Result<ServerReading> {
    let ServerSource { server, patience } = source;
    let metrics = server.get("/metrics", MAX_METRICS_BYTES, *patience).map_err(|trouble| match trouble {
        Trouble::NotFound { url, .. } => anyhow::Error::from(ReportedProblems(format!(
            "{url} has no /metrics: is it a server's address? (llama-server needs --metrics)"
        ))),
        other => other.into(),
    })?;
    let at = Instant::now();
    let metrics = ScrapedMetrics::parse(&metrics);
    if metrics.is_empty() {
        return Err(ReportedProblems(format!(
            "{}/metrics has no metrics of Latent or llama.cpp",
            server.url()
        ))
        .into());
    }
    // Only Latent has this endpoint, and it fails if no model is loaded. The phases are then empty.
    let model = metrics.busiest().map(str::to_owned);
    let profile = server.get(&of_model("/latent/profile", model.as_deref()), MAX_METRICS_BYTES, *patience);
    let phases = profile.map(|text| view::phases(&text)).unwrap_or_default();
    Ok(ServerReading { metrics, model, phases, at })
}

/// Starts a thread that takes readings, so that keys work while a server is slow.
fn readings(source: Arc<ServerSource>, interval: Duration) -> Result<Receiver<Result<ServerReading>>> {
    // One reading in the channel: if the screen is not drawn (a suspended terminal), the thread
    // waits instead of queuing old readings.
    let (sender, readings) = sync_channel(1);
    let make = move || {
        loop {
            let start = Instant::now();
            if sender.send(read(&source)).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(start.elapsed()));
        }
    };
    let started = thread::Builder::new().name("metrics".into()).spawn(make);
    started.context("cannot start a thread that reads the metrics: are the thread limits too low?")?;
    Ok(readings)
}

/// The next reading that has arrived, if any.
///
/// # Errors
/// If no reading can arrive any more, because the thread that takes them has ended.
fn arrived(readings: &Receiver<Result<ServerReading>>) -> Result<Option<Result<ServerReading>>> {
    match readings.try_recv() {
        Ok(reading) => Ok(Some(reading)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => {
            Err(ReportedProblems("the thread that reads the metrics has ended: run latent top again".into())
                .into())
        }
    }
}

/// Shows views until q is pressed or a signal arrives.
fn watch(source: ServerSource, interval: Duration) -> Result<()> {
    let source = Arc::new(source);
    let readings = readings(Arc::clone(&source), interval)?;
    let server = &source.server;
    let screen = TopScreen::enter()?;
    let keys = screen::keys();
    let mut history = SpeedHistory::default();
    let (mut last, mut shown, mut trouble): (Option<ServerReading>, Option<TopView>, Option<String>) =
        (None, None, None);
    let mut size = (0, 0);
    while !interrupt::asked() {
        // The size is polled: SIGWINCH is not handled, and Windows has no such signal.
        let mut changed = size != output::size();
        size = output::size();
        while let Some(reading) = arrived(&readings)? {
            changed = true;
            match reading {
                Ok(reading) => {
                    let view = view(&reading, last.as_ref());
                    history.add(&view);
                    (shown, trouble, last) = (Some(view), None, Some(reading));
                }
                // The last view stays below the error, and the thread tries again.
                Err(error) => trouble = Some(format!("{error:#}")),
            }
        }
        if changed {
            screen.show(&page(shown.as_ref(), trouble.as_deref(), server.url(), &history, size), size)?;
        }
        // 3 is Ctrl-C as a byte, from a terminal whose ISIG is off.
        if keys.try_iter().any(|key| matches!(key, b'q' | b'Q' | 3)) {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The lines of the screen.
fn page(
    view: Option<&TopView>,
    trouble: Option<&str>,
    url: &str,
    history: &SpeedHistory,
    (columns, rows): (usize, usize),
) -> Vec<String> {
    let mut lines = vec![draw::title(view, url)];
    match trouble {
        Some(trouble) => {
            let trouble = latent_types::printable(trouble);
            lines.extend(output::wrapped("", 0, &format!("{trouble} (trying again)"), columns));
        }
        None => lines.push(String::new()),
    }
    match view {
        Some(view) => lines.extend(draw::lines(view, history, columns)),
        None if trouble.is_none() => lines.push("asking the server …".into()),
        None => {}
    }
    // The last row tells how to leave, if the screen has room.
    if rows > 2 {
        lines.truncate(rows - 1);
        lines.resize(rows - 1, String::new());
        lines.push("q leaves".into());
    }
    lines
}
