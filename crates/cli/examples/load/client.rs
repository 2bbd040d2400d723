//! A client that waits for each answer before it sends the next request.

use super::figures::LoadFigures;
use super::plan::{ClientPlan, PlannedRequest};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Timeout of a request without a received byte.
const PATIENCE: Duration = Duration::from_secs(120);

/// Pause after a refusal without Retry-After.
const PAUSE: Duration = Duration::from_millis(250);

pub struct LoadClient {
    agent: Agent,
    address: String,
}

enum RequestEnd {
    Answered,
    /// The client closed the connection, as planned or because the time is over.
    Left,
    Refused(Duration),
}

impl LoadClient {
    pub fn new(url: &str) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_recv_response(Some(PATIENCE))
            .timeout_recv_body(Some(PATIENCE))
            .build()
            .into();
        LoadClient { agent, address: format!("{url}/completion") }
    }

    pub fn work(&self, mut plan: ClientPlan, end: Instant) -> LoadFigures {
        let mut figures = LoadFigures::default();
        while Instant::now() < end {
            match self.ask(&plan.ask(), end, &mut figures) {
                Ok(RequestEnd::Answered) => figures.answered += 1,
                Ok(RequestEnd::Left) => figures.left += 1,
                Ok(RequestEnd::Refused(wait)) => {
                    figures.refused += 1;
                    std::thread::sleep(wait.min(end.saturating_duration_since(Instant::now())));
                }
                Err(error) => *figures.errors.entry(error).or_default() += 1,
            }
        }
        figures
    }

    fn ask(
        &self,
        ask: &PlannedRequest,
        end: Instant,
        figures: &mut LoadFigures,
    ) -> Result<RequestEnd, String> {
        let begin = Instant::now();
        let mut response = self
            .agent
            .post(&self.address)
            .content_type("application/json")
            .send(ask.body.to_string())
            .map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        if status == 429 || status == 503 {
            let seconds =
                response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            return Ok(RequestEnd::Refused(seconds.map_or(PAUSE, Duration::from_secs)));
        }
        if status != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            return Err(format!("{status}: {text}"));
        }
        let (mut last, mut events, mut ending) = (None, 0, None);
        for line in BufReader::new(response.body_mut().as_reader()).lines() {
            let line = line.map_err(|error| error.to_string())?;
            let Some(data) = line.strip_prefix("data: ") else {
                if line.starts_with("error") {
                    return Err(line);
                }
                continue;
            };
            let event: Value = serde_json::from_str(data).map_err(|error| format!("{error} in {data}"))?;
            if !event["error"].is_null() {
                return Err(event["error"].to_string());
            }
            if event["stop"] == true {
                ending = Some(event);
                break;
            }
            let now = Instant::now();
            if now >= end {
                return Ok(RequestEnd::Left);
            }
            match last {
                None => {
                    figures.first.push(now - begin);
                    figures.tokens_in += ask.body["prompt"].as_array().map_or(0, Vec::len);
                }
                Some(before) => figures.gaps.push(now - before),
            }
            last = Some(now);
            events += 1;
            figures.tokens_out += 1;
            if ask.leave_after.is_some_and(|tokens| events > tokens) {
                return Ok(RequestEnd::Left);
            }
        }
        let ending = ending.ok_or("the stream ended without its last event")?;
        let count =
            |name: &str| ending[name].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let (asked, got) = (&ask.body["n_predict"], count("tokens_predicted"));
        if *asked != got {
            return Err(format!("{asked} tokens were asked for, and {got} came"));
        }
        // A token that ends within a UTF-8 character has no event of its own.
        figures.tokens_out += got.saturating_sub(events);
        figures.whole.push(begin.elapsed());
        Ok(RequestEnd::Answered)
    }
}
