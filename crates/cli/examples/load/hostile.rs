//! Attacks on a server, and the latency of plain requests with and without them.

use super::watch;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Maximum slow-down of plain requests at the 99th percentile.
const FACTOR: u32 = 5;

/// A 99th percentile below this passes whatever the factor: on two cores, attacks and answers share
/// the processor.
const FAST_ENOUGH: Duration = Duration::from_secs(2);

/// Minimum number of plain requests with and without attacks.
const FEWEST: usize = 100;

/// Rounds of calm and attack alternate, so that other load on the machine affects both.
const ROUNDS: u32 = 4;

/// Timeout of a request without a received byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause of an attacker between two requests. Attackers share the machine with the server.
const PAUSE: Duration = Duration::from_millis(20);

pub struct AttackTarget<'a> {
    pub url: &'a str,
    pub pid: Option<u32>,
    /// Maximum resident memory of the server.
    pub memory: u64,
    pub seconds: u64,
}

/// State shared by the attackers.
struct Attack<'a> {
    agent: Agent,
    url: &'a str,
    stop: AtomicBool,
    sent: AtomicUsize,
    refused: AtomicUsize,
}

/// Runs all attacks.
///
/// # Errors
/// If plain requests fail or become slower than [`FACTOR`] and [`FAST_ENOUGH`] allow, if the server
/// ends, or if it takes more memory than allowed.
pub fn run(target: &AttackTarget<'_>) -> Result<()> {
    let plain = agent()?;
    for _ in 0..20 {
        ask_plainly(&plain, target.url)?;
    }
    let (mut calm, mut attacked) = (Vec::new(), Vec::new());
    let (mut sent, mut refused) = (0, 0);
    let round = Duration::from_secs(target.seconds) / ROUNDS;
    for number in 0..ROUNDS {
        measure(&plain, target.url, round / 3, FEWEST / ROUNDS as usize, &mut calm)?;
        let attack = Attack {
            agent: agent()?,
            url: target.url,
            stop: AtomicBool::new(false),
            sent: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        };
        std::thread::scope(|scope| {
            for step in ATTACKS {
                let attack = &attack;
                scope.spawn(move || attack.repeat(*step));
            }
            let measured =
                measure(&plain, target.url, round * 2 / 3, FEWEST / ROUNDS as usize, &mut attacked);
            attack.stop.store(true, Ordering::Relaxed);
            measured.with_context(|| format!("a plain request failed during round {number}"))
        })?;
        sent += attack.sent.load(Ordering::Relaxed);
        refused += attack.refused.load(Ordering::Relaxed);
    }
    let (without, with) = (percentiles(&mut calm), percentiles(&mut attacked));
    println!("{sent} attacks, {refused} of them refused");
    println!(
        "plain requests without: {} times, median {:.1?}, p99 {:.1?}",
        calm.len(),
        without[0],
        without[1]
    );
    println!("plain requests with:    {} times, median {:.1?}, p99 {:.1?}", attacked.len(), with[0], with[1]);
    if let Some(pid) = target.pid {
        let peak = watch::peak(pid)?;
        println!("most resident memory: {} MiB", peak >> 20);
        ensure!(peak <= target.memory, "the server took more than {} MiB", target.memory >> 20);
    }
    ensure!(sent > 0, "no attack was sent");
    ensure!(
        with[1] <= FAST_ENOUGH.max(without[1] * FACTOR),
        "plain requests are more than {FACTOR} times as slow under attack, and take more than {FAST_ENOUGH:?}"
    );
    Ok(())
}

fn agent() -> Result<Agent> {
    Ok(Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(latent_hub::tls()?)
        .timeout_recv_response(Some(PATIENCE))
        .timeout_recv_body(Some(PATIENCE))
        .build()
        .into())
}

/// A short completion. A refusal (429) is an error and not retried: the server keeps room for small
/// requests during attacks, and a pause before the next try would hide in the measured time.
fn ask_plainly(agent: &Agent, url: &str) -> Result<()> {
    let body = json!({"prompt": [300, 301, 302, 303, 304, 305, 306, 307], "n_predict": 16, "ignore_eos": true, "cache_prompt": false});
    let mut response = agent.post(format!("{url}/completion")).send(body.to_string())?;
    let text = response.body_mut().read_to_string()?;
    ensure!(response.status() == 200, "{}: {text}", response.status());
    Ok(())
}

/// Times plain requests for `time`, and until there are at least `fewest`.
fn measure(agent: &Agent, url: &str, time: Duration, fewest: usize, times: &mut Vec<Duration>) -> Result<()> {
    let (end, enough) = (Instant::now() + time, times.len() + fewest);
    let last = Instant::now() + PATIENCE;
    while Instant::now() < end || (times.len() < enough && Instant::now() < last) {
        let begin = Instant::now();
        ask_plainly(agent, url)?;
        times.push(begin.elapsed());
    }
    Ok(())
}

/// The median and the 99th percentile.
fn percentiles(times: &mut [Duration]) -> [Duration; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times[(times.len() - 1) * percent / 100])
}

type AttackStep = fn(&Attack<'_>) -> Result<()>;

const ATTACKS: &[AttackStep] =
    &[schemas, grammars, large_bodies, small_bodies, headers, slow_bodies, handshakes];

impl Attack<'_> {
    fn repeat(&self, step: AttackStep) {
        // Attackers of a real server run on other machines, so these must not take its processor
        // time.
        latent_threads::lower_priority(19);
        while !self.stop.load(Ordering::Relaxed) {
            self.sent.fetch_add(1, Ordering::Relaxed);
            // The server may refuse, close or reset the connection. Plain requests test whether it
            // lives.
            if step(self).is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends a body and discards the answer.
    fn post(&self, path: &str, body: &[u8]) -> Result<()> {
        let mut response = self.agent.post(format!("{}{path}", self.url)).send(body)?;
        let status = response.status();
        let mut reader = response.body_mut().as_reader();
        let mut buffer = [0; 16_384];
        while !self.stop.load(Ordering::Relaxed) {
            if reader.read(&mut buffer)? == 0 {
                break;
            }
        }
        ensure!(status == 200, "{status}");
        Ok(())
    }

    fn chat(&self, more: Value) -> Result<()> {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 130});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        self.post("/v1/chat/completions", body.to_string().as_bytes())
    }

    fn connect(&self) -> Result<TcpStream> {
        let address = self.url.rsplit('/').next().context("no address")?;
        let stream = TcpStream::connect(address)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        Ok(stream)
    }
}

/// Intersections of patterns and of divisors, whose automata explode, as answers and as tool
/// arguments.
fn schemas(attack: &Attack<'_>) -> Result<()> {
    let patterns: Vec<Value> = ('a'..='z')
        .map(|letter| json!({"type": "string", "pattern": format!(".*{letter}.{{3}}.*")}))
        .collect();
    let divisors =
        [9973, 9967, 9949, 9941, 9931, 9929].map(|of| json!({"type": "integer", "multipleOf": of}));
    let results = [json!({"allOf": patterns}), json!({"allOf": divisors})].map(|schema| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let function = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}});
        attack.chat(json!({"response_format": format})).and(
            attack.chat(
                json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"}),
            ),
        )
    });
    results.into_iter().collect()
}

fn grammars(attack: &Attack<'_>) -> Result<()> {
    attack.chat(json!({"grammar": "root ::= e\ne ::= e e | e e e | .", "ignore_eos": true}))
}

/// Long texts, and many values in fields that are read and in an unknown one.
fn large_bodies(attack: &Attack<'_>) -> Result<()> {
    let text = json!({"content": "a é1 ".repeat(1_000_000), "with_pieces": true}).to_string();
    let values = vec![json!({"": 0}); 400_000];
    let results = [
        attack.post("/tokenize", text.as_bytes()),
        attack.chat(json!({"stop": values})),
        attack.chat(json!({"unknown": values})),
    ];
    results.into_iter().collect()
}

/// Many requests at once. No connection is closed before all are sent.
fn small_bodies(attack: &Attack<'_>) -> Result<()> {
    let body = json!({"messages": [{"role": "user", "content": vec![json!({"": 0}); 7800]}]}).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut open = Vec::new();
    for _ in 0..50 {
        let mut stream = attack.connect()?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        open.push(stream);
    }
    Ok(())
}

/// Headers up to the limit and beyond. Some never end.
fn headers(attack: &Attack<'_>) -> Result<()> {
    let mut open = Vec::new();
    for i in 0..50 {
        let mut stream = attack.connect()?;
        let long = "a".repeat(1000 * (i + 20));
        stream.write_all(format!("GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: {long}").as_bytes())?;
        open.push(stream);
    }
    Ok(())
}

/// Bodies sent byte by byte (slowloris).
fn slow_bodies(attack: &Attack<'_>) -> Result<()> {
    let mut open = Vec::new();
    for _ in 0..50 {
        let mut stream = attack.connect()?;
        stream.write_all(b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n{")?;
        open.push(stream);
    }
    for _ in 0..20 {
        for stream in &mut open {
            stream.write_all(b" ")?;
        }
        std::thread::sleep(Duration::from_millis(50));
        if attack.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// TLS client hellos, whole and cut, on connections that are closed before the answer is read.
fn handshakes(attack: &Attack<'_>) -> Result<()> {
    let hello = client_hello();
    for i in 0..50 {
        let mut stream = attack.connect()?;
        let length = if i % 2 == 0 { hello.len() } else { hello.len() / 2 };
        stream.write_all(&hello[..length])?;
        if i % 3 == 0 {
            stream.shutdown(Shutdown::Both)?;
        }
    }
    Ok(())
}

/// A TLS 1.3 client hello with a key share of unknown private key. The server answers it, which
/// costs it a signature.
fn client_hello() -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &sized(body)].concat();
    // The base point of X25519: a valid public key without any computation.
    let key: Vec<u8> = [&[9][..], &[0; 31]].concat();
    let extensions = [
        extension(43, &[2, 3, 4]),
        extension(10, &sized(&[0, 29])),
        extension(13, &sized(&[4, 3, 8, 4, 8, 7, 5, 3])),
        extension(51, &sized(&[&[0, 29][..], &sized(&key)].concat())),
    ]
    .concat();
    let body =
        [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1, 0x13, 2]), &[1, 0], &sized(&extensions)].concat();
    let length = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}
