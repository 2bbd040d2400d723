//! `latent verify`: audits circuit, plans and tensors for every formulation. With `--weights`,
//! checks the weights, too.

mod deep;
mod table;

use crate::args::VerifyArgs;
use crate::exit::ReportedProblems;
use crate::model::{self, ModelInfo};
use crate::output;
use anyhow::Result;
use latent_backend::Backend;
use latent_engine::{EngineOptions, ResolvedOptions};
use latent_formats::Outline;
use latent_graph::audit::{self, Code, Finding, UnusedTensor};
use latent_graph::circuit::TensorIndex;
use latent_graph::ir::Ir;
use latent_graph::passes::{CacheForm, FORMS, Precision};
use latent_graph::{Circuit, ModelConfig, Plan, Stage};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of kinds of findings in the text. JSON has all findings.
const MAX_SHOWN_KINDS: usize = 20;

pub(super) fn run(args: &VerifyArgs) -> Result<()> {
    if args.rules {
        return print_rules(args.json);
    }
    let path = args.path.as_deref().or(args.model.model.as_deref());
    let outline = model::outline(path)?;
    if args.weights {
        // The weights can be checked without a supported config.
        return weights(&outline, args);
    }
    let model = ModelInfo::new(outline, args.model.engine.circuit.as_deref())?;
    let subject = Subject { circuit: &model.circuit, config: &model.config, tensors: model.tensors() };
    if args.edges {
        return edges(&subject, args);
    }
    let report = AuditReport::new(model.outline.display_name(), &subject, args)?;
    if args.json {
        output::json(&report.json())?;
    } else {
        output::lines(&report.text())?;
    }
    match report.findings.len() {
        0 => Ok(()),
        n => {
            Err(ReportedProblems(format!("{n} finding{} in {}", if n == 1 { "" } else { "s" }, report.file))
                .into())
        }
    }
}

/// Checks every weight.
fn weights(outline: &Outline, args: &VerifyArgs) -> Result<()> {
    let file = outline.display_name();
    let Some(checkpoint) = outline.whole() else {
        anyhow::bail!("{file}: --weights needs weights, but they are missing or incomplete");
    };
    let threads = args.model.engine.options().place().threads();
    let deep = deep::look(checkpoint, threads)?;
    if args.json {
        output::json(&table::json(&deep, &file))?;
    } else {
        output::lines(&table::text(&deep, &file))?;
    }
    let wrong = |s: &latent_quant::Statistics| !table::judge(s).wrong.is_empty();
    match deep.tensors.iter().filter_map(|t| t.statistics.as_ref()).filter(|s| wrong(s)).count() {
        0 => Ok(()),
        n => Err(ReportedProblems(format!(
            "{n} tensor{} of {file} with wrong values",
            if n == 1 { "" } else { "s" }
        ))
        .into()),
    }
}

/// The subject of an audit.
struct Subject<'a> {
    circuit: &'a Circuit,
    config: &'a ModelConfig,
    tensors: &'a dyn TensorIndex,
}

/// The plans that are audited together.
struct AuditSession<'b> {
    name: String,
    resolved: ResolvedOptions<'b>,
    stages: Vec<Stage>,
}

/// Every formulation in both precisions.
fn sessions<'b>(
    subject: &Subject<'_>,
    args: &VerifyArgs,
    backend: &'b dyn Backend,
) -> Result<Vec<AuditSession<'b>>> {
    let Subject { circuit, config, tensors } = *subject;
    let given = args.model.engine.options();
    let mut sessions = Vec::new();
    for precision in [Precision::Default, Precision::Exact] {
        let cache = given.cache.unwrap_or_else(|| backend.default_cache(precision == Precision::Exact));
        for (mla, form) in FORMS.into_iter().filter(|(_, form)| form.stores(cache)) {
            let circuit = Some(Arc::new(circuit.clone()));
            let options =
                EngineOptions { mla, form, precision, cache: Some(cache), circuit, ..given.clone() };
            let resolved = options.resolve(backend, config).map_err(crate::exit::usage_of)?;
            let stages = resolved.stages(config, tensors)?;
            let expanded = if form == CacheForm::Expanded { ", expanded cache" } else { "" };
            let name = format!("{mla}{expanded}, {precision} precision");
            sessions.push(AuditSession { name, resolved, stages });
        }
    }
    Ok(sessions)
}

/// Counts and findings.
struct AuditReport {
    file: String,
    circuit: String,
    sessions: Vec<String>,
    plans: usize,
    nodes: usize,
    edges: usize,
    tensors: usize,
    unused: Vec<UnusedTensor>,
    findings: Vec<Finding>,
    /// Median time per session: the cost at each load.
    middle: Duration,
}

impl AuditReport {
    fn new(file: String, subject: &Subject<'_>, args: &VerifyArgs) -> Result<AuditReport> {
        let Subject { circuit, config, tensors } = *subject;
        let backend = args.model.engine.backend()?;
        let sessions = sessions(subject, args, &*backend)?;
        let mut findings: Vec<Finding> = Vec::new();
        let mut times = Vec::new();
        for session in &sessions {
            let start = Instant::now();
            let found = session.resolved.audit(config, tensors, &session.stages);
            times.push(start.elapsed());
            for finding in found {
                // Findings about the circuit or the file are the same in all sessions. Without the
                // session's name they are listed once.
                let stage = match finding.stage.as_str() {
                    "circuit" | "file" => finding.stage.clone(),
                    stage => format!("{stage} ({})", session.name),
                };
                let finding = Finding { stage, ..finding };
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
            }
        }
        times.sort_unstable();
        let stages = sessions.iter().flat_map(|session| &session.stages);
        let plans: Vec<&Plan> = stages.flat_map(|stage| &stage.plans).collect();
        let irs: Vec<&Ir> = plans.iter().map(|plan| &plan.ir).collect();
        Ok(AuditReport {
            file,
            circuit: model::circuit_name(&args.model.engine, config),
            plans: plans.len(),
            nodes: irs.iter().map(|ir| ir.nodes.len()).sum(),
            edges: irs.iter().map(|ir| ir.named_edges().len()).sum(),
            tensors: tensors.all().len(),
            unused: audit::unused(circuit, config, tensors, &irs).0,
            sessions: sessions.into_iter().map(|s| s.name).collect(),
            findings,
            middle: times[times.len() / 2],
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "file": self.file,
            "circuit": self.circuit,
            "sessions": self.sessions,
            "plans": self.plans,
            "nodes": self.nodes,
            "edges": self.edges,
            "tensors": self.tensors,
            "unused": self.unused,
            "findings": self.findings,
            "milliseconds": self.middle.as_secs_f64() * 1e3,
        })
    }

    /// Findings grouped over layers, nodes and plans: the first of each group and its count.
    fn groups(&self) -> Vec<(&Finding, usize)> {
        let mut groups: Vec<(&Finding, usize)> = Vec::new();
        for finding in &self.findings {
            // Without digits, findings that differ only in layer or node numbers are one group.
            let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
            let key = |f: &Finding| (f.code, f.slot.as_deref().map(words), words(&f.problem));
            let same = |other: &Finding| key(other) == key(finding);
            match groups.iter_mut().find(|(first, _)| same(first)) {
                Some((_, count)) => *count += 1,
                None => groups.push((finding, 1)),
            }
        }
        groups
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("{}: circuit {}", self.file, self.circuit),
            format!(
                "checked        {} plans of {} sessions: {} nodes, {} edges",
                self.plans,
                self.sessions.len(),
                self.nodes,
                self.edges
            ),
            format!("tensors        {}, {} of them declared unused", self.tensors, self.unused.len()),
        ];
        let mut whys: Vec<(&str, usize)> = Vec::new();
        for unused in &self.unused {
            match whys.iter_mut().find(|(why, _)| *why == unused.why) {
                Some((_, count)) => *count += 1,
                None => whys.push((&unused.why, 1)),
            }
        }
        lines.extend(whys.iter().map(|(why, count)| format!("  {count:>5}        {why}")));
        lines.push(format!("at each load   {:.1} ms", self.middle.as_secs_f64() * 1e3));
        lines.push(format!("findings       {}", self.findings.len()));
        let groups = self.groups();
        for (first, count) in groups.iter().take(MAX_SHOWN_KINDS) {
            lines.push(first.to_string());
            if *count > 1 {
                lines.push(format!("    … and {} more like it, in other layers and plans", count - 1));
            }
        }
        if groups.len() > MAX_SHOWN_KINDS {
            lines.push(format!("… and {} more kinds: --json lists them all", groups.len() - MAX_SHOWN_KINDS));
        }
        lines.push(String::new());
        output::joined(&lines)
    }
}

/// Prints every edge of the layers' decode plan.
fn edges(subject: &Subject<'_>, args: &VerifyArgs) -> Result<()> {
    let backend = args.model.engine.backend()?;
    let sessions = sessions(subject, args, &*backend)?;
    let wanted = (args.model.engine.mla, args.model.engine.form());
    let form = |session: &AuditSession<'_>| {
        (session.resolved.options.stages.mla, session.resolved.options.stages.form)
    };
    let chosen = sessions.iter().find(|session| form(session) == wanted);
    // Not every combination of formulation and cache exists.
    let Some(session) = chosen else {
        return Err(crate::exit::UsageError("--expanded-cache requires --mla naive".into()).into());
    };
    let plan = &session.stages[0].plans[0];
    if args.json {
        return output::json(&serde_json::to_value(plan.ir.named_edges())?);
    }
    let name = |n: usize| {
        let node = &plan.ir.nodes[n];
        let layer = node.layer.map_or_else(String::new, |layer| format!("L{layer} "));
        format!("{layer}{} #{n}", node.op.word())
    };
    let mut text = String::new();
    for edge in plan.ir.named_edges() {
        let producer = edge.producer.map_or_else(|| "input".into(), name);
        let value = &plan.ir.values[edge.value].name;
        text.push_str(&format!("{producer:<26} {value:<16} -> {} [{}]\n", name(edge.consumer), edge.slot));
    }
    output::multiline(&text)
}

/// Prints every rule: code, what must hold, what to look at.
fn print_rules(json: bool) -> Result<()> {
    let rules: Vec<_> = Code::ALL.iter().map(|code| code.rule()).collect();
    if json {
        return output::json(&serde_json::to_value(rules)?);
    }
    let (mut family, mut text) = ("", String::new());
    for rule in rules {
        if rule.family != family {
            family = rule.family;
            text.push_str(&format!("{family}\n"));
        }
        text.push_str(&format!("  {}  {}\n", rule.code, rule.holds));
    }
    output::lines(&text)
}
