//! A list of models that changes while the server runs, and the events about it.

use crate::client::{Reply, receive, send};
use crate::models::{long, serve, state, tiny, whole};
use crate::support::{CHAT, TestServer, ask, config, loader_of, open_demo, source, until, wrap};
use latent_server::{
    DownloadProgress, Extras, ModelCatalog, ModelSettings, ModelSource, Server, ServerConfig,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A list of demo models by their names, with their definitions.
#[derive(Default)]
struct Catalog {
    models: Mutex<BTreeMap<String, Model>>,
    problem: Mutex<Option<&'static str>>,
    /// The results that downloads wait for.
    results: Mutex<BTreeMap<String, Receiver<Result<(), String>>>>,
    deleted: Mutex<Vec<(String, Vec<String>)>>,
}

#[derive(Clone, Copy, Default)]
struct Model {
    definition: u32,
    removable: bool,
    hidden: bool,
    load_on_startup: bool,
}

impl Catalog {
    fn of(models: &[(&str, Model)]) -> Arc<Catalog> {
        let catalog = Arc::<Catalog>::default();
        catalog.set(models);
        catalog
    }

    fn set(&self, models: &[(&str, Model)]) {
        *self.models.lock().unwrap() = models.iter().map(|(name, model)| ((*name).into(), *model)).collect();
    }

    /// Permits the download of a model. It ends with the result that is sent.
    fn offer(&self, name: &str) -> Sender<Result<(), String>> {
        let (sender, result) = channel();
        self.results.lock().unwrap().insert(name.to_owned(), result);
        sender
    }
}

impl ModelCatalog for Catalog {
    fn sources(&self) -> Result<Vec<ModelSource>, String> {
        if let Some(problem) = *self.problem.lock().unwrap() {
            return Err(problem.into());
        }
        let models = self.models.lock().unwrap();
        let made = models.iter().map(|(name, model)| ModelSource {
            definition: model.definition.to_string(),
            path: format!("/models/{name}"),
            settings: ModelSettings {
                hidden: model.hidden,
                removable: model.removable,
                load_on_startup: model.load_on_startup,
                ..ModelSettings::default()
            },
            ..source(name, loader_of(name, Box::new(open_demo)))
        });
        Ok(made.collect())
    }

    fn check_download(&self, name: &str) -> Result<String, String> {
        if name.contains('/') { Ok(name.to_owned()) } else { Err("expected OWNER/NAME".into()) }
    }

    fn download(&self, name: &str, report: &mut dyn FnMut(DownloadProgress) -> bool) -> Result<(), String> {
        let result = self.results.lock().unwrap().remove(name).expect("it was offered");
        let mut done = 0;
        loop {
            if !report(DownloadProgress { source: format!("hf:{name}"), done, total: 100 }) {
                return Err("stopped".into());
            }
            done = 50;
            match result.recv_timeout(Duration::from_millis(5)) {
                Ok(Ok(())) => {
                    let model = Model { removable: true, ..Model::default() };
                    self.models.lock().unwrap().insert(name.to_owned(), model);
                    return Ok(());
                }
                Ok(Err(problem)) => return Err(problem),
                Err(_) => {}
            }
        }
    }

    fn delete(&self, name: &str, in_use: &[String]) -> Result<(), String> {
        self.deleted.lock().unwrap().push((name.to_owned(), in_use.to_vec()));
        self.models.lock().unwrap().remove(name).map(drop).ok_or_else(|| "it is not there".into())
    }
}

fn start(catalog: &Arc<Catalog>) -> TestServer {
    let config = ServerConfig { router: true, ..config() };
    let extras = Extras { catalog: Some(Arc::<Catalog>::clone(catalog)), ..Extras::default() };
    let server = Server::start(config, catalog.sources().unwrap(), extras).unwrap();
    server.wait_loaded(Duration::from_secs(10)).expect("nothing is loaded yet").unwrap();
    wrap(server)
}

/// The events of a server. The connection's read timeout bounds every wait.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    fn of(server: &TestServer) -> Events {
        let mut lines = BufReader::new(send(server.address, "GET", "/models/sse", &[], b"")).lines();
        // The server sends the head after it has subscribed this client: no later event is missed.
        assert!(lines.any(|line| line.unwrap().is_empty()));
        Events(lines)
    }

    fn next(&mut self) -> Value {
        let data = self.0.find_map(|line| Some(line.unwrap().strip_prefix("data: ")?.to_owned()));
        serde_json::from_str(&data.expect("the stream continues")).unwrap()
    }

    /// The next event of this kind of a model.
    fn until(&mut self, model: &str, kind: &str) -> Value {
        loop {
            let event = self.next();
            if event["model"] == model && event["event"] == kind {
                return event["data"].clone();
            }
        }
    }

    fn until_status(&mut self, model: &str, status: &str) -> Value {
        loop {
            let data = self.until(model, "model_status");
            if data["status"] == status {
                return data;
            }
        }
    }
}

fn names(reply: Reply) -> Vec<String> {
    let list = reply.ok();
    list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

const PLAIN: Model = Model { definition: 0, removable: false, hidden: false, load_on_startup: false };

#[test]
fn events_report_every_status_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let demo = loader_of("demo", Box::new(open_demo));
    let broken = source("broken", Box::new(|_| Err("the file is gone".into())));
    let models = vec![source("demo", demo), source("tiny", tiny(folder.path())), broken];
    let mut server = serve(ServerConfig { models_max: 1, ..config() }, models);
    let mut events = Events::of(&server);
    server.post("/models/load", &json!({"model": "demo"})).ok();
    events.until_status("demo", "loading");
    let loaded = events.until_status("demo", "loaded");
    assert_eq!(loaded["info"], server.get("/v1/models/demo").ok()["meta"]);
    server.post("/models/load", &json!({"model": "tiny"})).ok();
    events.until_status("demo", "unloaded");
    events.until_status("tiny", "loaded");
    server.post(CHAT, &ask(json!({"model": "broken"}))).error(500);
    let failed = events.until("broken", "model_status");
    assert_eq!(failed["status"], "loading");
    events.until_status("tiny", "unloaded");
    let failed = events.until_status("broken", "unloaded");
    assert_eq!((&failed["failed"], &failed["problem"]), (&json!(true), &json!("the file is gone")));
    // A connected reader does not delay shutdown.
    server.end();
    assert!(events.0.all(|line| line.is_ok_and(|line| !line.starts_with("data: "))));
}

#[test]
fn a_list_that_is_read_again_changes_the_models() {
    let other = Model { definition: 1, ..PLAIN };
    let catalog = Catalog::of(&[("a", PLAIN), ("b", PLAIN), ("c", PLAIN)]);
    let server = start(&catalog);
    let mut events = Events::of(&server);
    for name in ["a", "b", "c"] {
        server.post("/models/load", &json!({"model": name})).ok();
        events.until_status(name, "loaded");
    }
    // `a` is removed, `b` stays, `c` changes, `d` is added, and `e` is added but hidden.
    let stream = server.begin(CHAT, &long("a", 200));
    server.until_begun("a");
    catalog.set(&[("b", PLAIN), ("c", other), ("d", PLAIN), ("e", Model { hidden: true, ..PLAIN })]);
    assert_eq!(names(server.get("/models")), ["a", "b", "c"]);
    assert_eq!(names(server.get("/models?reload=0")), ["a", "b", "c"]);
    assert_eq!(names(server.get("/models?reload=1")), ["b", "c", "d"]);
    events.until("a", "model_remove");
    events.until("c", "model_remove");
    events.until("*", "models_reload");
    assert_eq!((state(&server, "b"), state(&server, "c")), ("loaded".into(), "unloaded".into()));
    // The running answer of a removed model is completed.
    assert_eq!(whole(&receive(stream).chunks()), 200);
    let gone = server.post(CHAT, &ask(json!({"model": "a"}))).error(404).0;
    assert_eq!(gone, "unknown model \"a\"; this server has b, c, d");
    assert_eq!(server.post(CHAT, &ask(json!({"model": "c"}))).ok()["model"], "c");
    assert_eq!(server.post(CHAT, &ask(json!({"model": "e"}))).ok()["model"], "e");
    // A request without a name means the first model.
    assert_eq!(server.post(CHAT, &ask(json!({}))).ok()["model"], "b");
    // A faulty list changes nothing.
    *catalog.problem.lock().unwrap() = Some("models.ini, line 3: unknown key");
    let (problem, _) = server.get("/v1/models?reload=1").error(500);
    assert_eq!(problem, "the list of models cannot be reloaded: models.ini, line 3: unknown key");
    assert_eq!(names(server.get("/models")), ["b", "c", "d"]);
    // An empty list is valid. A model that is listed again is usable again.
    *catalog.problem.lock().unwrap() = None;
    catalog.set(&[]);
    assert!(names(server.get("/models?reload=1")).is_empty());
    assert_eq!(server.post(CHAT, &ask(json!({}))).error(404).0, "this server has no models");
    server.get("/latent/stats").error(404);
    server.get("/metrics").text();
    catalog.set(&[("a", PLAIN)]);
    assert_eq!(names(server.get("/models?reload=1")), ["a"]);
    assert_eq!(server.post(CHAT, &ask(json!({"model": "a"}))).ok()["model"], "a");
    server.post(CHAT, &ask(json!({"model": "other"}))).error(404);
}

#[test]
fn models_may_be_loaded_when_the_server_starts() {
    let catalog = Catalog::of(&[("a", PLAIN), ("b", Model { load_on_startup: true, ..PLAIN })]);
    let server = start(&catalog);
    until("loaded", || state(&server, "b") == "loaded");
    assert_eq!(state(&server, "a"), "unloaded");
}

#[test]
fn models_are_downloaded_and_deleted() {
    let catalog = Catalog::of(&[("a", PLAIN)]);
    let server = start(&catalog);
    let mut events = Events::of(&server);
    let download = |name: &str| server.post("/models", &json!({"model": name}));
    let delete = |name: &str| server.ask("DELETE", &format!("/models?model={name}"), &[], "");
    assert_eq!(download("plain").error(400).0, "`model`: expected OWNER/NAME");
    server.post("/models", &json!({"model": ""})).error(400);
    server.post("/models", &json!({})).error(400);
    let result = catalog.offer("o/n");
    download("o/n").ok();
    until("progress", || {
        let list = server.get("/models").ok();
        let status = &list["data"][1]["status"];
        status["value"] == "downloading" && status["progress"]["hf:o/n"] == json!({"done": 50, "total": 100})
    });
    assert_eq!(download("o/n").error(400).0, "`model`: o/n is already being downloaded");
    result.send(Ok(())).unwrap();
    assert_eq!(events.until("o/n", "download_progress"), json!({"hf:o/n": {"done": 0, "total": 100}}));
    events.until("o/n", "download_finished");
    assert_eq!(names(server.get("/models")), ["a", "o/n"]);
    assert_eq!(download("o/n").error(400).0, "`model`: the server already has the model o/n");
    // A loaded model cannot be deleted.
    assert_eq!(server.post(CHAT, &ask(json!({"model": "o/n"}))).ok()["model"], "o/n");
    assert_eq!(delete("o/n").error(400).0, "`model`: o/n is in memory: POST /models/unload first");
    server.post("/models/unload", &json!({"model": "o/n"})).ok();
    events.until_status("o/n", "unloaded");
    server.post("/models/load", &json!({"model": "a"})).ok();
    events.until_status("a", "loaded");
    delete("o/n").ok();
    events.until("o/n", "model_remove");
    assert_eq!(*catalog.deleted.lock().unwrap(), [("o/n".to_owned(), vec!["/models/a".to_owned()])]);
    assert_eq!(names(server.get("/models")), ["a"]);
    // Files that this server has not downloaded are not deleted.
    delete("o/n").error(404);
    assert!(delete("a").error(400).0.contains("its files are kept"));
    server.ask("DELETE", "/models", &[], "").error(400);
    assert_eq!(names(server.get("/models")), ["a"]);
}

#[test]
fn downloads_fail_are_stopped_and_are_few() {
    let catalog = Catalog::of(&[("a", PLAIN)]);
    let mut server = start(&catalog);
    let mut events = Events::of(&server);
    let results = ["o/1", "o/2", "o/3"].map(|name| catalog.offer(name));
    let download = |server: &TestServer, name: &str| server.post("/models", &json!({"model": name}));
    download(&server, "o/1").ok();
    download(&server, "o/2").ok();
    let busy = download(&server, "o/3");
    assert!(busy.error(429).0.contains("2 models are being downloaded"));
    assert!(busy.header("retry-after").is_some());
    results[0].send(Err("the hub has no such model".into())).unwrap();
    assert_eq!(events.until("o/1", "download_failed")["problem"], "the hub has no such model");
    server.post("/models/unload", &json!({"model": "o/2"})).ok();
    assert_eq!(events.until("o/2", "download_failed")["problem"], "stopped");
    assert_eq!(names(server.get("/models")), ["a"]);
    // Shutdown cancels a download.
    download(&server, "o/3").ok();
    events.until("o/3", "download_progress");
    server.end();
}

#[test]
fn a_fixed_list_stays_as_it_is() {
    let demo = || loader_of("demo", Box::new(open_demo));
    let server = serve(config(), vec![source("demo", demo()), source("other", demo())]);
    assert!(server.post("/models", &json!({"model": "o/n"})).error(501).0.contains("--models-cache"));
    assert!(server.ask("DELETE", "/models?model=demo", &[], "").error(501).0.contains("latent rm"));
    assert_eq!(names(server.get("/models?reload=1")), ["demo", "other"]);
}
