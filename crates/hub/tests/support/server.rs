//! The server: two hosts, the hub and the storage to which it redirects.

use super::{COMMIT, HubFile, git_oid, sha256};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A fault of the hub. Each element of a list applies to one request.
#[derive(Clone, Debug)]
pub enum Misdeed {
    /// Answers with this status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Announces the full length and closes the connection after this number of bytes.
    Truncate(usize),
    /// Sends other bytes of the same number.
    WrongBytes,
    /// Sends the whole file whatever range is requested.
    IgnoreRange,
    /// Closes the connection after this number of bytes.
    FromStart(usize),
    /// Sends another range than requested.
    WrongRange,
    /// Sends endless bytes without a length.
    Endless,
    /// Announces another length.
    Length(usize),
    /// Sends this number of bytes, then stalls.
    Stall(usize),
    /// Waits before each tenth of the bytes.
    Slow(Duration),
    /// Sends one byte at a time, and waits before each.
    Drip(Duration),
    /// Sends endless headers, one byte at a time.
    DripHeaders(Duration),
    /// Sends an endless chunk extension, one byte at a time.
    DripChunk(Duration),
    /// Sends endless headers.
    Headers,
    /// Sends endless interim responses.
    Interim,
    /// Claims that the bytes are compressed.
    Compressed,
    /// Redirects to this address.
    Redirect(String),
    /// Sends this text instead of JSON.
    Body(String),
}

/// A received request.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// `hub` or `storage`.
    pub host: &'static str,
    /// Path and query.
    pub target: String,
    /// Headers, with names in lower case.
    pub headers: HashMap<String, String>,
}

#[derive(Default)]
struct HubState {
    files: Mutex<Vec<HubFile>>,
    /// Raw objects of a listing, after the files.
    entries: Mutex<Vec<String>>,
    commit: Mutex<String>,
    /// The name of the repository, if it is not `o/n`.
    repo: Mutex<Option<String>>,
    misdeeds: Mutex<HashMap<String, VecDeque<Misdeed>>>,
    /// Keys of `misdeeds` whose faults repeat.
    habits: Mutex<HashSet<String>>,
    seen: Mutex<Vec<SeenRequest>>,
    token: Mutex<Option<String>>,
    gated: AtomicBool,
    ended: AtomicBool,
    storage: Mutex<String>,
}

/// A hub with one repository, `o/n`. It stops when it is dropped.
pub struct Hub {
    pub url: String,
    state: Arc<HubState>,
}

/// Number of files per page of a listing.
const PAGE: usize = 2;

impl Hub {
    pub fn new(files: Vec<HubFile>) -> Hub {
        let state = Arc::new(HubState { files: Mutex::new(files), ..HubState::default() });
        *state.commit.lock().unwrap() = COMMIT.into();
        let storage = serve("storage", &state);
        *state.storage.lock().unwrap() = storage;
        let url = serve("hub", &state);
        Hub { url, state }
    }

    pub fn set_files(&self, commit: &str, files: Vec<HubFile>) {
        *self.state.commit.lock().unwrap() = commit.into();
        *self.state.files.lock().unwrap() = files;
    }

    /// Sets the name of the repository.
    pub fn rename(&self, repo: &str) {
        *self.state.repo.lock().unwrap() = Some(repo.into());
    }

    /// Adds an object to the listing without a file.
    pub fn add_entry(&self, json: &str) {
        self.state.entries.lock().unwrap().push(json.into());
    }

    /// Makes one request for `what` fail for each fault. `what` is `revision`, `tree`, `resolve`,
    /// or the path of a file (for requests of its bytes).
    pub fn misbehave(&self, what: &str, misdeeds: impl IntoIterator<Item = Misdeed>) {
        self.state.misdeeds.lock().unwrap().entry(what.into()).or_default().extend(misdeeds);
    }

    /// Like `misbehave`, for all requests, in this order repeatedly.
    pub fn always(&self, what: &str, misdeeds: impl IntoIterator<Item = Misdeed>) {
        self.misbehave(what, misdeeds);
        self.state.habits.lock().unwrap().insert(what.into());
    }

    /// Requires this token.
    pub fn need_token(&self, token: &str, gated: bool) {
        *self.state.token.lock().unwrap() = Some(token.into());
        self.state.gated.store(gated, Ordering::SeqCst);
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Requests for the bytes of a file.
    pub fn downloads(&self, path: &str) -> Vec<SeenRequest> {
        let here = |seen: &SeenRequest| {
            seen.target.split('?').next().unwrap_or_default().ends_with(&format!("/{path}"))
        };
        let large = self.state.files.lock().unwrap().iter().any(|file| file.path == path && file.lfs);
        let host = if large { "storage" } else { "hub" };
        self.seen().into_iter().filter(|seen| here(seen) && seen.host == host).collect()
    }

    /// The address of the other host.
    pub fn storage(&self) -> String {
        self.state.storage.lock().unwrap().clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        // Wakes the listeners.
        for url in [&self.url, &self.storage()] {
            drop(TcpStream::connect(url.trim_start_matches("http://")));
        }
    }
}

fn serve(host: &'static str, state: &Arc<HubState>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let state = state.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            if state.ended.load(Ordering::SeqCst) {
                return;
            }
            let (state, stream) = (state.clone(), stream.unwrap());
            thread::spawn(move || talk(host, &state, stream));
        }
    });
    url
}

/// Handles requests of one connection until one closes it.
fn talk(host: &'static str, state: &HubState, stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let seen = request(host, &mut reader)?;
        state.seen.lock().unwrap().push(seen.clone());
        if !answer(state, &seen, &mut stream)? {
            return None;
        }
    }
}

fn request(host: &'static str, reader: &mut dyn BufRead) -> Option<SeenRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
    let target = line.strip_prefix("GET ")?.split(' ').next()?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    Some(SeenRequest { host, target, headers })
}

/// Answers a request. Returns whether the connection stays open.
fn answer(state: &HubState, seen: &SeenRequest, out: &mut dyn Write) -> Option<bool> {
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    let path = unescaped(path);
    if seen.host == "storage" {
        let path = path.strip_prefix("/objects/").unwrap_or_default();
        return file(state, path, seen, out);
    }
    if let Some(token) = &*state.token.lock().unwrap()
        && seen.headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        let known = seen.headers.contains_key("authorization");
        let gated = state.gated.load(Ordering::SeqCst);
        let code = if gated { "GatedRepo" } else { "RepoNotFound" };
        let status = if known { 403 } else { 401 };
        return status_only(
            out,
            status,
            &[("x-error-code", code.into()), ("x-error-message", "Access is restricted.".into())],
        );
    }
    let commit = state.commit.lock().unwrap().clone();
    let repo = state.repo.lock().unwrap().clone().unwrap_or_else(|| "o/n".into());
    if let Some(revision) = path.strip_prefix(&format!("/api/models/{repo}/revision/")) {
        return match misdeed(state, "revision") {
            None if !["main", "v1", "refs/pr/1", commit.as_str()].contains(&revision) => {
                status_only(out, 404, &[("x-error-code", "RevisionNotFound".into())])
            }
            misdeed => json(
                out,
                misdeed,
                &[],
                &format!("{{\"id\": \"o/n\", \"sha\": \"{commit}\", \"gated\": false}}"),
            ),
        };
    }
    if path == format!("/api/models/{repo}/tree/{commit}") {
        let misdeed = misdeed(state, "tree");
        let (text, next) = page(state, query);
        // Like mirrors: the address is of another host.
        let next = next
            .map(|next| format!("<https://hub.invalid{path}?recursive=true&cursor={next}>; rel=\"next\""));
        let headers: Vec<_> = next.map(|next| ("link", next)).into_iter().collect();
        return json(out, misdeed, &headers, &text);
    }
    if let Some(path) = path.strip_prefix(&format!("/{repo}/resolve/{commit}/")) {
        return resolve(state, path, seen, out);
    }
    status_only(out, 404, &[("x-error-code", "RepoNotFound".into())])
}

fn resolve(state: &HubState, path: &str, seen: &SeenRequest, out: &mut dyn Write) -> Option<bool> {
    match misdeed(state, "resolve") {
        Some(Misdeed::Status(status, headers)) => return status_only(out, status, &headers),
        Some(Misdeed::Redirect(to)) => return status_only(out, 302, &[("location", to)]),
        _ => {}
    }
    let found = state.files.lock().unwrap().iter().find(|file| file.path == path).cloned();
    match found {
        None => status_only(out, 404, &[("x-error-code", "EntryNotFound".into())]),
        Some(found) if found.lfs => {
            let to = format!(
                "{}/objects/{}?X-Signature=secret",
                state.storage.lock().unwrap(),
                path.replace(' ', "%20")
            );
            let etag = format!("\"{}\"", sha256(&found.bytes));
            status_only(
                out,
                302,
                &[
                    ("location", to),
                    ("x-linked-etag", etag),
                    ("x-linked-size", found.bytes.len().to_string()),
                ],
            )
        }
        Some(_) => file(state, path, seen, out),
    }
}

/// One page of the listing, and the start of the next page.
fn page(state: &HubState, query: &str) -> (String, Option<usize>) {
    let mut all: Vec<String> =
        vec!["{\"type\": \"directory\", \"oid\": \"x\", \"size\": 0, \"path\": \"sub\"}".into()];
    for file in state.files.lock().unwrap().iter() {
        let size = file.size.unwrap_or(file.bytes.len() as u64);
        let mut entry = format!("{{\"type\": \"file\", \"path\": {:?}, \"size\": {size}, ", file.path);
        if file.lfs {
            let sha = sha256(&file.bytes);
            write!(entry, "\"oid\": \"{}\", \"lfs\": {{\"oid\": \"{sha}\", \"size\": {size}, \"pointerSize\": 134}}, \"xetHash\": \"{}\"}}", "1".repeat(40), "2".repeat(64)).unwrap();
        } else {
            write!(entry, "\"oid\": \"{}\"}}", git_oid(&file.bytes)).unwrap();
        }
        all.push(entry);
    }
    all.extend(state.entries.lock().unwrap().iter().cloned());
    let start =
        query.split('&').find_map(|pair| pair.strip_prefix("cursor=")).map_or(0, |at| at.parse().unwrap());
    let end = (start + PAGE).min(all.len());
    (format!("[{}]", all[start..end].join(", ")), (end < all.len()).then_some(end))
}

fn misdeed(state: &HubState, what: &str) -> Option<Misdeed> {
    let mut misdeeds = state.misdeeds.lock().unwrap();
    let list = misdeeds.get_mut(what)?;
    let first = list.pop_front()?;
    if state.habits.lock().unwrap().contains(what) {
        list.push_back(first.clone());
    }
    Some(first)
}

fn json(
    out: &mut dyn Write,
    misdeed: Option<Misdeed>,
    headers: &[(&'static str, String)],
    text: &str,
) -> Option<bool> {
    let text = match misdeed {
        Some(Misdeed::Status(status, headers)) => return status_only(out, status, &headers),
        Some(Misdeed::Body(text)) => text,
        Some(Misdeed::Endless) => return endless(out),
        Some(Misdeed::Stall(_)) => return stall(out),
        Some(Misdeed::Drip(time)) => {
            head(out, 200, &[("content-length", text.len().to_string())])?;
            drip(out, text.as_bytes(), time)?;
            return Some(true);
        }
        Some(misdeed) if unending(&misdeed).is_some() => return without_end(out, &misdeed),
        _ => text.to_owned(),
    };
    head(out, 200, &[headers, &[("content-length", text.len().to_string())]].concat())?;
    out.write_all(text.as_bytes()).ok()?;
    Some(true)
}

/// Sends the bytes of a file.
fn file(state: &HubState, path: &str, seen: &SeenRequest, out: &mut dyn Write) -> Option<bool> {
    let found = state.files.lock().unwrap().iter().find(|file| file.path == path).cloned();
    let Some(found) = found else { return status_only(out, 404, &[]) };
    let misdeed = misdeed(state, path);
    let etag = format!("\"{}\"", &sha256(&found.bytes)[..16]);
    let size = found.bytes.len();
    let fresh = seen.headers.get("if-range").is_none_or(|tag| *tag == etag);
    let ignored = matches!(misdeed, Some(Misdeed::IgnoreRange | Misdeed::FromStart(_)));
    let range = seen.headers.get("range").filter(|_| fresh && !ignored);
    let start =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let mut body = found.bytes[start.unwrap_or(0).min(size)..].to_vec();
    let (mut status, mut headers) = (200, vec![("etag", etag), ("accept-ranges", "bytes".into())]);
    if let Some(start) = start {
        if start >= size {
            return status_only(out, 416, &[]);
        }
        let first = if matches!(misdeed, Some(Misdeed::WrongRange)) { 0 } else { start };
        headers.push(("content-range", format!("bytes {first}-{}/{size}", size - 1)));
        status = 206;
    }
    let mut announced = body.len();
    match misdeed {
        Some(Misdeed::Status(status, headers)) => return status_only(out, status, &headers),
        Some(Misdeed::Redirect(to)) => return status_only(out, 302, &[("location", to)]),
        Some(Misdeed::WrongBytes) => body.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Misdeed::Endless) => return endless(out),
        Some(Misdeed::Compressed) => headers.push(("content-encoding", "gzip".into())),
        Some(Misdeed::Length(length)) => announced = length,
        Some(Misdeed::Truncate(at) | Misdeed::Stall(at) | Misdeed::FromStart(at)) => body.truncate(at),
        Some(misdeed) if unending(&misdeed).is_some() => return without_end(out, &misdeed),
        _ => {}
    }
    headers.push(("content-length", announced.to_string()));
    head(out, status, &headers)?;
    if let Some(Misdeed::Drip(time)) = misdeed {
        drip(out, &body, time)?;
        return Some(true);
    }
    for piece in body.chunks(body.len().div_ceil(10).max(1)) {
        if let Some(Misdeed::Slow(time)) = misdeed {
            thread::sleep(time);
        }
        out.write_all(piece).ok()?;
        out.flush().ok()?;
    }
    if matches!(misdeed, Some(Misdeed::Stall(_))) {
        thread::sleep(Duration::from_secs(20));
    }
    Some(body.len() == announced)
}

fn head(out: &mut dyn Write, status: u16, headers: &[(&'static str, String)]) -> Option<()> {
    let mut text = format!("HTTP/1.1 {status} Word\r\n");
    headers.iter().for_each(|(name, value)| write!(text, "{name}: {value}\r\n").unwrap());
    out.write_all((text + "\r\n").as_bytes()).ok()
}

fn status_only(out: &mut dyn Write, status: u16, headers: &[(&'static str, String)]) -> Option<bool> {
    head(out, status, &[headers, &[("content-length", "0".into())]].concat())?;
    Some(true)
}

fn endless(out: &mut dyn Write) -> Option<bool> {
    head(out, 200, &[("connection", "close".into())])?;
    let spaces = vec![b' '; 1 << 16];
    loop {
        out.write_all(&spaces).ok()?;
    }
}

fn drip(out: &mut dyn Write, bytes: &[u8], time: Duration) -> Option<()> {
    for byte in bytes {
        thread::sleep(time);
        out.write_all(&[*byte]).and_then(|()| out.flush()).ok()?;
    }
    Some(())
}

/// The start of an endless response, the text that is repeated, and the time between two bytes.
fn unending(misdeed: &Misdeed) -> Option<(&'static str, &'static str, Duration)> {
    match misdeed {
        Misdeed::DripHeaders(time) => Some(("HTTP/1.1 200 Word\r\nx-a: ", "a", *time)),
        Misdeed::DripChunk(time) => {
            Some(("HTTP/1.1 200 Word\r\ntransfer-encoding: chunked\r\n\r\n5;a=", "a", *time))
        }
        Misdeed::Headers => Some(("HTTP/1.1 200 Word\r\n", "x-a: b\r\n", Duration::ZERO)),
        Misdeed::Interim => Some(("", "HTTP/1.1 100 Continue\r\n\r\n", Duration::ZERO)),
        _ => None,
    }
}

fn without_end(out: &mut dyn Write, misdeed: &Misdeed) -> Option<bool> {
    let (start, more, time) = unending(misdeed)?;
    out.write_all(start.as_bytes()).ok()?;
    loop {
        thread::sleep(time);
        out.write_all(more.as_bytes()).and_then(|()| out.flush()).ok()?;
    }
}

fn stall(out: &mut dyn Write) -> Option<bool> {
    head(out, 200, &[("content-length", "100".into())])?;
    thread::sleep(Duration::from_secs(20));
    None
}

fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'%').then(|| std::str::from_utf8(tail.get(..2)?).ok()).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
