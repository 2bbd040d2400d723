//! `latent inspect`: contents and memory needs of a model file. A header or a config.json without
//! weights suffices.

use super::hyper_parameters::facts;
use crate::args::InspectArgs;
use crate::model::{self, ModelInfo};
use crate::output;
use anyhow::Result;
use latent_backend::{MemoryEstimate, WeightSource};
use latent_engine::{EngineOptions, memory};
use latent_formats::pack::PackSource;
use latent_formats::{CheckpointSource, Outline, OutlineData, TokenizerPlace};
use latent_graph::ModelConfig;
use latent_graph::circuit::LayerRun;
use latent_graph::passes::{CacheForm, crossover};
use latent_types::format_bytes;
use latent_types::{CacheRow, CacheType, TensorType};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let path = args.path.as_deref().or(args.model.model.as_deref());
    // Metadata and tensors are printed without a config, so that files of unsupported architectures
    // can be inspected, too.
    if args.metadata {
        return metadata(model::outline(path)?.source());
    }
    if args.tensors && !args.json {
        let outline = model::outline(path)?;
        if outline.data() != OutlineData::Config {
            return tensors(&listed(&outline));
        }
    }
    let model = model::describe(path, args.model.engine.circuit.as_deref())?;
    if args.tensors && !args.json {
        return tensors(&promised(&model));
    }
    let report = InspectReport::new(&model, args)?;
    if args.json { output::json(&report.json(args)?) } else { output::lines(&report.text()) }
}

/// The layout of tensors that no file stores in this form: the 4-bit weights of a GPTQ, AWQ or
/// compressed-tensors folder, which are assembled from several tensors.
const JOINED: &str = "joined";

struct ListedTensor<'a> {
    name: &'a str,
    ty: TensorType,
    shape: &'a [usize],
    bytes: u64,
    layout: &'static str,
}

/// The tensors of a file or header.
fn listed(outline: &Outline) -> Vec<ListedTensor<'_>> {
    let layout = |name: &str| match outline.whole().and_then(|file| file.info(name)) {
        Some(info) if info.tile_rows.is_some() => "tiles",
        Some(info) if !info.is_stored() => JOINED,
        _ => "rows",
    };
    let of = |t: &'_ latent_formats::TensorHead| (t.bytes, layout(&t.name));
    let list = outline.tensors().iter().map(|t| {
        let (bytes, layout) = of(t);
        ListedTensor { name: &t.name, ty: t.ty, shape: &t.shape, bytes, layout }
    });
    list.collect()
}

/// The tensors implied by a config.json, sorted by name.
fn promised(model: &ModelInfo) -> Vec<ListedTensor<'_>> {
    let mut list: Vec<ListedTensor<'_>> = model.tensors().all().into_iter().map(of_index).collect();
    list.sort_by_key(|tensor| tensor.name);
    list
}

fn of_index<'a>((name, ty, shape): (&'a str, TensorType, &'a [usize])) -> ListedTensor<'a> {
    let row = shape.last().and_then(|cols| ty.row_bytes(*cols)).unwrap_or(0) as u64;
    // Saturating: shapes of a config.json are untrusted numbers.
    let rows = shape.iter().rev().skip(1).fold(1u64, |n, size| n.saturating_mul(*size as u64));
    ListedTensor { name, ty, shape, bytes: row.saturating_mul(rows), layout: "rows" }
}

struct InspectReport<'a> {
    config: ModelConfig,
    file: String,
    circuit: String,
    layers: Vec<LayerRun>,
    kind: String,
    data: OutlineData,
    /// The assumed type of matrices if the file has no tensors.
    assumed: Option<TensorType>,
    tensors: Vec<ListedTensor<'a>>,
    packed: Option<PackSource>,
    /// Number of tensors, bytes and elements of each type.
    types: BTreeMap<TensorType, (usize, u64, u64)>,
    cache: CacheType,
    context: usize,
    needed: MemoryEstimate,
    tokenizer: Value,
    template: Option<usize>,
}

impl<'a> InspectReport<'a> {
    fn new(model: &'a ModelInfo, args: &InspectArgs) -> Result<InspectReport<'a>> {
        let outline = &model.outline;
        let options = EngineOptions {
            circuit: Some(Arc::new(model.circuit.clone().into_owned())),
            ..args.model.engine.options()
        };
        let backend = args.model.engine.backend()?;
        let config = options.config_on(&*backend, model.config.clone());
        let config = &config;
        let resolved = options.resolve(&*backend, config).map_err(crate::exit::usage_of)?;
        let stages = resolved.stages(config, model.tensors())?;
        let cache = resolved.options.stages.bind.cache;
        let context = options.context.unwrap_or(config.context_length);
        let source = match outline.whole() {
            Some(checkpoint) => WeightSource::File(checkpoint),
            None => WeightSource::Declared(model.tensors()),
        };
        let weights = resolved.weight_bytes(&stages, source);
        let needed = resolved.estimate(config, &stages, weights, context);
        let list = if outline.data() == OutlineData::Config { promised(model) } else { listed(outline) };
        let mut types = BTreeMap::new();
        for tensor in &list {
            let entry = types.entry(tensor.ty).or_insert((0, 0, 0));
            entry.0 += 1;
            entry.1 += tensor.bytes;
            entry.2 += tensor.shape.iter().product::<usize>() as u64;
        }
        let (tokenizer, template) = text_side(outline.source())?;
        let mut report = InspectReport {
            config: config.clone(),
            file: outline.display_name(),
            circuit: model::circuit_name(&args.model.engine, config),
            layers: model.circuit.layer_runs(config)?,
            kind: kind(outline),
            data: outline.data(),
            assumed: model.promised.as_ref().map(|promised| promised.matrix_type()),
            tensors: list,
            packed: outline.whole().and_then(|checkpoint| checkpoint.packed_from().cloned()),
            types,
            cache,
            context,
            needed,
            tokenizer,
            template,
        };
        let token_bytes = report.token_bytes(args.model.engine.form(), cache).unwrap_or(0);
        let token_bytes = token_bytes + report.index_bytes(cache).unwrap_or(0);
        // The exact bytes per token of the printed table times the context, so that both tables
        // agree.
        report.needed.cache = token_bytes.saturating_mul(context as u64);
        Ok(report)
    }

    /// Bytes per token in the KV cache; `None` if the type cannot store this form.
    fn token_bytes(&self, form: CacheForm, ty: CacheType) -> Option<u64> {
        let a = &self.config.attention;
        let (content, rope) = match form {
            CacheForm::Latent => (a.kv_lora_rank, a.rope),
            CacheForm::Expanded => (a.expanded_width(), 0),
        };
        let row = CacheRow { ty, content, rope };
        form.stores(ty).then_some((row.bytes() * self.config.latent_layers()) as u64)
    }

    /// Bytes per token of indexer keys; `None` in a model without indexers.
    fn index_bytes(&self, ty: CacheType) -> Option<u64> {
        let indexer = self.config.attention.indexer?;
        let layers = (0..self.config.layers).filter(|layer| self.config.has_indexer(*layer)).count();
        let row = CacheRow { ty, content: indexer.width, rope: 0 };
        Some((row.bytes() * layers) as u64)
    }

    fn json(&self, args: &InspectArgs) -> Result<Value> {
        let by_type = |(ty, (tensors, bytes, numbers)): (&TensorType, &(usize, u64, u64))| json!({"type": ty.name(), "tensors": tensors, "bytes": bytes, "parameters": numbers});
        let per_token: Vec<Value> = CacheType::ALL
            .iter()
            .map(|ty| {
                json!({
                    "type": ty.name(),
                    "latent": self.token_bytes(CacheForm::Latent, *ty),
                    "expanded": self.token_bytes(CacheForm::Expanded, *ty),
                    "index": self.index_bytes(*ty),
                })
            })
            .collect();
        let mut value = json!({
            "file": self.file,
            "kind": self.kind,
            "data": self.data,
            "assumed_type": self.assumed.map(TensorType::name),
            "circuit": self.circuit,
            "layers": self.layers,
            "packed": self.packed.as_ref().map(|p| json!({
                "version": p.version,
                "source": p.name,
                "fingerprint": format!("{:016x}-{:016x}", p.identity.header, p.identity.sample),
            })),
            "config": self.config,
            // The name of `config` until 2026-11, kept for scripts.
            "contract": self.config,
            "crossover_rows": crossover(&self.config.attention),
            "types": self.types.iter().map(by_type).collect::<Vec<_>>(),
            "memory": {
                "context": self.context,
                "weights": self.needed.weights,
                "mapped": self.needed.mapped,
                "cache": self.needed.cache,
                "state": self.needed.state,
                "arena": self.needed.arena,
                "expanded": self.needed.expanded,
                "total": self.needed.total(),
                "available": memory::available(),
            },
            "cache_bytes_per_token": per_token,
            "state_bytes_per_sequence": self.config.state_bytes(),
            "tokenizer": self.tokenizer,
            "chat_template_bytes": self.template,
        });
        if args.tensors {
            let tensor = |t: &ListedTensor<'_>| json!({"name": t.name, "type": t.ty.name(), "shape": t.shape, "bytes": t.bytes, "layout": t.layout});
            value["tensors"] = self.tensors.iter().map(tensor).collect();
        }
        Ok(value)
    }

    fn text(&self) -> String {
        let c = &self.config;
        let mut lines = vec![format!("{}: {}", self.file, self.kind)];
        match self.data {
            OutlineData::Whole => {}
            OutlineData::Header => lines.push("data           missing: sizes are those of the header".into()),
            OutlineData::Config => {
                lines.push("data           missing: sizes are those implied by the keys".into())
            }
        }
        if let Some(ty) = self.assumed {
            lines.push(format!("assumed        {ty} matrices, because the file lists no tensors"));
        }
        if let Some(p) = &self.packed {
            let (header, sample) = (p.identity.header, p.identity.sample);
            lines.push(format!("packed from    {}, fingerprint {header:016x}-{sample:016x}", p.name));
        }
        if let Some(name) = &c.name {
            lines.push(format!("name           {name}"));
        }
        lines.push(format!("architecture   {} (circuit {})", c.architecture, self.circuit));
        lines.extend(facts(c, &self.layers));
        lines.push(format!("tokenizer      {}", plain(&self.tokenizer)));
        let template = match (self.template, self.data) {
            (Some(n), _) => format!("{n} bytes"),
            (None, OutlineData::Config) => "none here".into(),
            (None, _) => "none (use --raw)".into(),
        };
        lines.push(format!("chat template  {template}"));
        self.tables(&mut lines);
        lines.push(String::new());
        output::joined(&lines)
    }

    /// Tables of tensor types, cache bytes per token, and memory.
    fn tables(&self, lines: &mut Vec<String>) {
        lines.push(String::new());
        lines.push(format!("{:<10} {:>8} {:>12} {:>14}", "type", "tensors", "bytes", "parameters"));
        for (ty, (tensors, bytes, numbers)) in &self.types {
            lines.push(format!(
                "{:<10} {tensors:>8} {:>12} {:>14}",
                ty.name(),
                format_bytes(*bytes),
                model::count(*numbers)
            ));
        }
        lines.push(String::new());
        let mut title = format!("{:<14} {:>12} {:>12}", "bytes/token", "latent", "expanded");
        if self.config.attention.indexer.is_some() {
            title.push_str(&format!(" {:>12}", "index"));
        }
        lines.push(title);
        for ty in CacheType::ALL {
            let bytes = |form| self.token_bytes(form, ty).map_or("–".into(), format_bytes);
            let index = self.index_bytes(ty).map(|bytes| format!(" {:>12}", format_bytes(bytes)));
            lines.push(format!(
                "  {:<12} {:>12} {:>12}{}",
                ty.name(),
                bytes(CacheForm::Latent),
                bytes(CacheForm::Expanded),
                index.unwrap_or_default()
            ));
        }
        if self.config.kda.is_some() {
            let bytes = format_bytes(self.config.state_bytes() as u64);
            lines.push(format!("recurrent state {bytes:>11}, one for each sequence and each snapshot"));
        }
        lines.push(String::new());
        lines.push(format!("memory for {} tokens in a {} cache", self.context, self.cache));
        for (what, bytes) in self.needed.parts() {
            lines.push(format!("  {what:<12} {:>12}", format_bytes(bytes)));
        }
        lines.push(format!("  {:<12} {:>12}", "together", format_bytes(self.needed.total())));
        if let Some(available) = memory::available() {
            lines.push(format!("  {:<12} {:>12}", available.limit, format_bytes(available.bytes)));
        }
    }
}

fn kind(outline: &Outline) -> String {
    let source = match outline.source() {
        CheckpointSource::Gguf(g) if g.shards > 1 => {
            format!("GGUF version {}, {} shards", g.version, g.shards)
        }
        CheckpointSource::Gguf(g) => format!("GGUF version {}", g.version),
        CheckpointSource::HuggingFace(_) if outline.data() == OutlineData::Config => {
            "config.json only".into()
        }
        CheckpointSource::HuggingFace(_) => "safetensors folder".into(),
    };
    match outline.whole().and_then(|checkpoint| checkpoint.packed_from()) {
        Some(packed) => format!("packed file version {}, from a {source}", packed.version),
        None => source,
    }
}

/// Facts about the tokenizer, and the length of the chat template.
fn text_side(source: &CheckpointSource) -> Result<(Value, Option<usize>)> {
    match source {
        CheckpointSource::Gguf(g) => {
            let word = |key: &str| g.metadata.str(key).map(|w| w.map(str::to_owned));
            let tokens = match g.metadata.get("tokenizer.ggml.tokens") {
                Some(latent_formats::gguf::Value::Array(array)) => Some(array.count),
                _ => None,
            };
            let tokenizer = json!({
                "model": word("tokenizer.ggml.model")?,
                "pre": word("tokenizer.ggml.pre")?,
                "tokens": tokens,
                "bos": g.metadata.u64("tokenizer.ggml.bos_token_id")?,
                "eos": g.metadata.u64("tokenizer.ggml.eos_token_id")?,
            });
            Ok((tokenizer, g.metadata.str("tokenizer.chat_template")?.map(str::len)))
        }
        CheckpointSource::HuggingFace(hf) => {
            let file = hf.tokenizer.as_ref().map(|file| match &file.place {
                TokenizerPlace::File(path) => path.display().to_string(),
                TokenizerPlace::Held(_) => format!("{} in this file", file.kind.file_name()),
            });
            let tokenizer = json!({ "file": file });
            Ok((tokenizer, hf.chat_template.as_ref().map(String::len)))
        }
    }
}

/// An object as `key value, key value`, without null values.
fn plain(value: &Value) -> String {
    let Some(object) = value.as_object() else { return value.to_string() };
    let word = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let words: Vec<String> =
        object.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| format!("{k} {}", word(v))).collect();
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

fn tensors(list: &[ListedTensor<'_>]) -> Result<()> {
    for tensor in list {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        output::line(&format!(
            "{:<48} {:<8} {:>12}  {}{}",
            tensor.name,
            tensor.ty,
            tensor.bytes,
            shape.join(" × "),
            match tensor.layout {
                "tiles" => ", in tiles",
                JOINED => ", put together from 4-bit tensors",
                _ => "",
            }
        ))?;
    }
    Ok(())
}

fn metadata(source: &CheckpointSource) -> Result<()> {
    match source {
        CheckpointSource::Gguf(g) => {
            for (key, value) in g.metadata.entries() {
                output::line(&format!("{key} = {}", value.describe()))?;
            }
            Ok(())
        }
        CheckpointSource::HuggingFace(hf) => output::json(&Value::Object(hf.config.clone())),
    }
}
