//! The files of the library: generated ones, and those that are the same for every model.

use crate::error::EmitError;
use crate::operations::PhaseWriter;
use crate::request::{EmitRequest, EmittedPlans};
use crate::tensors::{MAX_DIMENSIONS, WeightTables};
use crate::text::{comment, double, string};
use latent_graph::Plan;
use latent_graph::config::{Gating, GroupMask, GroupScore, ModelConfig, MoeShape, RopePairs, RopeScaling};
use latent_graph::ir::{AttentionPath, Op, ValueStorage};
use latent_graph::passes::MlaChoice;
use std::fmt::Write;

/// A file of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CFile {
    pub name: &'static str,
    pub text: String,
}

/// A C library that computes one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CLibrary {
    pub files: Vec<CFile>,
}

/// Files that are the same for every model.
const RUNTIME: [(&str, &str); 11] = [
    ("Makefile", include_str!("runtime/Makefile")),
    ("main.c", include_str!("runtime/main.c")),
    ("libmodel.c", include_str!("runtime/libmodel.c")),
    ("model.h", include_str!("runtime/model.h")),
    ("kernels.c", include_str!("runtime/kernels.c")),
    ("kernels.h", include_str!("runtime/kernels.h")),
    ("tiles.c", include_str!("runtime/tiles.c")),
    ("tiles.h", include_str!("runtime/tiles.h")),
    ("types.h", include_str!("runtime/types.h")),
    ("gguf.c", include_str!("runtime/gguf.c")),
    ("gguf.h", include_str!("runtime/gguf.h")),
];

impl CLibrary {
    /// Names of the files of every library.
    pub fn file_names() -> impl Iterator<Item = &'static str> {
        ["libmodel.h", "plan.c"].into_iter().chain(RUNTIME.iter().map(|(name, _)| *name))
    }

    /// Plans the model and writes the plan as C.
    ///
    /// # Errors
    /// [`EmitError::Unsupported`] with everything that has no C code, and errors of planning.
    pub fn emit(request: &EmitRequest<'_>) -> Result<CLibrary, EmitError> {
        // Errors of planning end here; everything without C code is collected into one error below.
        let plans = request.plans()?;
        // C code adds offsets to the arena's address, so twice its size must fit in a pointer
        // difference.
        let arena = plans.layers.arena.bytes.max(plans.head.arena.bytes);
        if arena > isize::MAX as usize / 2 {
            return Err(EmitError::internal("its arena is larger than the address space"));
        }
        let mut tables = WeightTables::default();
        let mut missing = request.refused_files();
        let mut functions = String::new();
        for (stage, plan) in [("layers", &plans.layers), ("head", &plans.head)] {
            let (config, checkpoint) = (request.config, request.checkpoint);
            let mut writer =
                PhaseWriter { plan, config, checkpoint, tables: &mut tables, missing: Vec::new() };
            functions.push_str(&writer.functions(stage)?);
            functions.push('\n');
            missing.append(&mut writer.missing);
        }
        // After an unsupported file or operation, errors of weights would mostly follow from it.
        if missing.is_empty() {
            missing.append(&mut tables.missing);
        }
        if !missing.is_empty() {
            let file = request.checkpoint.display_name();
            return Err(EmitError::Unsupported { file, missing });
        }
        check_results(&plans)?;
        let header = header(request, &plans);
        let plan = plan_c(request, &plans, &tables, &functions)?;
        let mut files =
            vec![CFile { name: "libmodel.h", text: header }, CFile { name: "plan.c", text: plan }];
        files.extend(RUNTIME.iter().map(|(name, text)| CFile { name, text: (*text).to_owned() }));
        Ok(CLibrary { files })
    }
}

/// Checks that the first stage ends in the residual stream and the second in logits, whose buffers
/// `libmodel.c` allocates.
fn check_results(plans: &EmittedPlans) -> Result<(), EmitError> {
    for (plan, storage) in [(&plans.layers, ValueStorage::Hidden), (&plans.head, ValueStorage::Logits)] {
        let result = plan.ir.outputs.first().map(|(_, id)| plan.ir.value(plan.ir.root(*id)).storage);
        if result != Some(storage) {
            return Err(EmitError::internal(format!("a stage ends in {result:?} instead of {storage:?}")));
        }
    }
    Ok(())
}

fn shown_name(request: &EmitRequest<'_>) -> String {
    let file = request.checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
    request.config.name.clone().or(file).unwrap_or_else(|| request.config.architecture.clone())
}

fn header(request: &EmitRequest<'_>, plans: &EmittedPlans) -> String {
    let (config, name) = (request.config, shown_name(request));
    format!(
        "/* {shown}: a model as a C library, written by Latent from its plan.
 *
 *     char error[512];
 *     struct model *m = model_open(\"model.gguf\", 0, error, sizeof error);
 *     const char *problem = model_step(m, tokens, count, NULL);
 *     const float *logits = model_logits(m);
 *
 * A model is one sequence: several threads may use several models. The file must not change while it is open. */
#ifndef LIBMODEL_H
#define LIBMODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {{
#endif

#define MODEL_NAME {literal}
/* Tokens of the vocabulary: logits per token. */
#define MODEL_VOCAB {vocab}u
/* Longest context in tokens. */
#define MODEL_CONTEXT {context}u
/* Tokens that pass through the layers together; a longer step takes several passes. */
#define MODEL_ROWS {rows}u

struct model;

/* Maps the GGUF file and allocates a cache for `context` tokens (0: at most 4096). Returns NULL and writes what is wrong
 * to `error`: a tensor that is missing, of another type or shape, or not in the file whole. */
struct model *model_open(const char *path, size_t context, char *error, size_t error_bytes);
void model_close(struct model *m);

/* Forgets all tokens. */
void model_reset(struct model *m);

/* Appends tokens. `logits` is NULL or has room for count × MODEL_VOCAB numbers, the logits after each token.
 * Returns NULL, or what is wrong; then no token was appended. */
const char *model_step(struct model *m, const uint32_t *tokens, size_t count, float *logits);

/* The logits after the last token of the last step: MODEL_VOCAB numbers. */
const float *model_logits(const struct model *m);

/* Tokens so far, and tokens that fit. */
size_t model_position(const struct model *m);
size_t model_context(const struct model *m);

#ifdef __cplusplus
}}
#endif

#endif
",
        shown = comment(&name),
        literal = string(&name),
        vocab = config.vocab_size,
        context = config.context_length,
        rows = plans.layers.max_rows,
    )
}

fn plan_c(
    request: &EmitRequest<'_>,
    plans: &EmittedPlans,
    tables: &WeightTables,
    functions: &str,
) -> Result<String, EmitError> {
    let config = request.config;
    let mut text = format!(
        "/* The plan of {name}: one function per phase, in order, first of the layers and then of the head.
 *
 * Offsets in the arena are bytes, places in the residual stream too. A value has rows × heads × width elements of f32; \"rows\" are
 * the tokens of a step. The formulation of attention is {mla} with a cache of {form}. Weights are read as the file has them. */
#include \"model.h\"

#define AT(type, offset) ((type *)(void *)(m->arena + (offset)))
#define W(index) (&m->weights[index])

",
        name = comment(&shown_name(request)),
        mla = request.mla,
        form = match request.form {
            latent_graph::passes::CacheForm::Latent => "latents",
            latent_graph::passes::CacheForm::Expanded => "expanded keys and values",
        }
    );
    tensors(&mut text, tables)?;
    cache(&mut text, &plans.layers);
    rotations(&mut text, config)?;
    // Unused static structs would cause warnings of the C compiler.
    if functions.contains("&attention") {
        attention(&mut text, config)?;
    }
    if let Some(moe) = config.moe.filter(|_| functions.contains("&router")) {
        router(&mut text, &moe)?;
    }
    text.push_str(functions);
    path(&mut text, request, plans);
    sizes(&mut text, request, plans, tables);
    Ok(text)
}

fn tensors(text: &mut String, tables: &WeightTables) -> Result<(), EmitError> {
    text.push_str("/* Tensors of the file, sorted by name; dimensions innermost first. */\n");
    text.push_str("static const struct tensor tensors[] = {\n");
    for (name, tensor) in &tables.tensors {
        let Some(id) = tensor.ty.ggml_id() else {
            return Err(EmitError::internal(format!("{} is not a type of GGUF", tensor.ty)));
        };
        let dimensions: [String; MAX_DIMENSIONS] = tensor.dimensions.map(|n| n.to_string());
        let _ = writeln!(
            text,
            "    {{{}, {}, {id}, {{{}}}}}, /* {} */",
            string(name),
            name.len(),
            dimensions.join(", "),
            tensor.ty
        );
    }
    text.push_str("};\n\n/* Weights: tensor, rows, elements per row. */\n");
    text.push_str("static const struct weight_place weights[] = {\n");
    for (i, weight) in tables.weights.iter().enumerate() {
        // Tensors are sorted by name, so that the C code can find them in the file's order by
        // search.
        let tensor = tables.tensors.keys().position(|name| *name == weight.tensor).unwrap_or(0);
        let name = comment(&weight.tensor);
        let _ = writeln!(text, "    {{{tensor}, {}, {}}}, /* {i}: {name} */", weight.rows, weight.inputs);
    }
    text.push_str("};\n\n");
    Ok(())
}

fn cache(text: &mut String, layers: &Plan) {
    text.push_str("/* The cache: elements, and whether they are per token or one state per sequence. */\n");
    text.push_str("static const struct cache_layer cache[] = {\n");
    for (i, layer) in layers.ir.kv_layers.iter().enumerate() {
        let _ = writeln!(
            text,
            "    {{{}, {}}}, /* {i}: {} of layer {} */",
            layer.width,
            u8::from(layer.state.is_none()),
            layer.kind.name(),
            layer.layer
        );
    }
    text.push_str("};\n\n");
}

fn number(x: f64) -> Result<String, EmitError> {
    double(x).ok_or_else(|| EmitError::internal(format!("a parameter of {x}")))
}

fn rotations(text: &mut String, config: &ModelConfig) -> Result<(), EmitError> {
    // LongRoPE chooses frequencies by the session's context, which is known when the library opens
    // the model. So both tables are written.
    let contexts = match &config.rope.scaling {
        RopeScaling::LongRope { original, .. } => [("rotation", *original), ("rotation_long", usize::MAX)],
        _ => [("rotation", config.context_length), ("rotation_long", config.context_length)],
    };
    for (name, context) in contexts {
        // Written as decimals of f64, so the C code needs no `pow`.
        let mut frequencies = config.rope.inverse_frequencies(context);
        // No table beyond the pairs of the shared key.
        frequencies.truncate(config.attention.rope / 2);
        let pairs = frequencies.len();
        if pairs == 0 {
            let _ = writeln!(text, "#define {}_OF_PLAN {{0, 0, 1.0, 0}}\n", name.to_uppercase());
            continue;
        }
        let _ = writeln!(text, "/* Radians per position of each pair. */");
        let _ = writeln!(text, "static const double {name}[] = {{");
        for frequency in frequencies {
            let _ = writeln!(text, "    {},", number(frequency)?);
        }
        // Whether pairs are half a row apart.
        let halves = u8::from(config.rope.pairs == RopePairs::NeoX);
        let magnitude = number(config.rope.magnitude())?;
        let _ = writeln!(
            text,
            "}};\n#define {}_OF_PLAN {{{name}, {pairs}, {magnitude}, {halves}}}\n",
            name.to_uppercase()
        );
    }
    Ok(())
}

fn attention(text: &mut String, config: &ModelConfig) -> Result<(), EmitError> {
    let a = &config.attention;
    let (temperature, length) = a.temperature.map_or((0.0, 0), |t| (t.scale, t.length));
    let _ = writeln!(
        text,
        "/* heads, kv_lora, nope, rope, v; factor on scores; temperature and its length; tokens attended to (0: all) */\n\
         static const struct attention attention = {{{}, {}, {}, {}, {}, {}, {}, {length}, {}}};\n",
        a.heads,
        a.kv_lora_rank,
        a.nope,
        a.rope,
        a.v,
        number(a.softmax_scale)?,
        number(temperature)?,
        a.indexer.map_or(0, |indexer| indexer.topk)
    );
    Ok(())
}

fn router(text: &mut String, moe: &MoeShape) -> Result<(), EmitError> {
    let r = &moe.router;
    let gating = match r.gating {
        Gating::Softmax => "GATING_SOFTMAX",
        Gating::Sigmoid => "GATING_SIGMOID",
        Gating::SoftmaxOfSelected => "GATING_SOFTMAX_OF_SELECTED",
        Gating::SqrtSoftplus => "GATING_SQRT_SOFTPLUS",
    };
    let _ = writeln!(
        text,
        "/* experts, per token; gating; groups, groups used, judged by their best two, others count as 0; normalise;\n\
         \x20* least sum, factor on weights */\n\
         static const struct router router = {{{}, {}, {gating}, {}, {}, {}, {}, {}, {}, {}}};\n",
        moe.experts,
        moe.num_experts_per_tok,
        r.groups,
        r.groups_used,
        u8::from(r.group_score == GroupScore::TopTwoSum),
        u8::from(r.group_mask == GroupMask::Zero),
        u8::from(r.normalise),
        number(r.norm_floor)?,
        number(r.scale)?
    );
    Ok(())
}

/// Writes the function that chooses the attention path of a step.
fn path(text: &mut String, request: &EmitRequest<'_>, plans: &EmittedPlans) {
    let nodes = &plans.layers.ir.nodes;
    let both = nodes.iter().any(|node| node.path != AttentionPath::All);
    let about = "/* Whether a step of `rows` rows expands keys and values of all heads. */";
    let body = match (request.mla, request.mla.naive_from(&request.config.attention)) {
        (MlaChoice::Auto, Some(from)) if both => format!("return rows >= {from};"),
        // The plan has one path, or all steps take one of the two.
        (choice, _) => format!("(void)rows;\n    return {};", u8::from(choice == MlaChoice::Naive)),
    };
    let _ = writeln!(text, "{about}\nint plan_naive(size_t rows)\n{{\n    {body}\n}}\n");
}

fn sizes(text: &mut String, request: &EmitRequest<'_>, plans: &EmittedPlans, tables: &WeightTables) {
    let (config, a) = (request.config, &request.config.attention);
    let line = tables.longest_row();
    // Only naive attention over latents expands keys and values into scratch memory.
    let expands = plans.layers.ir.nodes.iter().any(|n| n.op == Op::AttendExpanded && !n.weights.is_empty());
    let (experts, groups, used, ffn) = config.moe.map_or((0, 0, 0, 0), |moe| {
        (moe.experts, moe.router.groups, moe.num_experts_per_tok, moe.intermediate)
    });
    let kda = config.kda.as_ref().map_or(0, |kda| kda.width);
    let index = a.indexer.map_or(0, |indexer| indexer.width);
    let rows = plans.layers.max_rows;
    let fields = [
        ("vocab", config.vocab_size),
        ("hidden", config.hidden_size),
        ("rows", rows),
        ("head_rows", plans.head.max_rows),
        ("arena_bytes", plans.layers.arena.bytes.max(plans.head.arena.bytes)),
        ("context", config.context_length),
        ("tensor_count", tables.tensors.len()),
        ("weight_count", tables.weights.len()),
        ("cache_layers", plans.layers.ir.kv_layers.len()),
        ("line", line),
        // Sizes of scratch buffers in elements; `libmodel.c` allocates them.
        ("head", (a.nope + a.v).saturating_mul(a.kv_lora_rank)),
        ("expanded", if expands { a.nope + a.rope + a.v } else { 0 }),
        // One buffer serves attention, delta rule and indexer, which run one after another.
        ("query", (a.nope + a.rope).max(kda).max(index)),
        ("sums", a.kv_lora_rank.max(a.v).max(kda)),
        ("router", 2 * experts + groups + used),
        ("taken", experts.max(groups)),
        ("experts", rows.saturating_mul(ffn)),
    ];
    text.push_str("const struct plan plan = {\n");
    for (name, size) in fields {
        let _ = writeln!(text, "    .{name} = {size},");
    }
    // The context above which the session uses the second table. Without LongRoPE both are equal.
    let threshold = match &config.rope.scaling {
        RopeScaling::LongRope { original, .. } => *original,
        _ => config.context_length,
    };
    let _ = writeln!(
        text,
        "    .tensors = tensors,\n    .weights = weights,\n    .cache = cache,\n    .rotation = ROTATION_OF_PLAN,\n    \
         .rotation_long = ROTATION_LONG_OF_PLAN,\n    .rotation_context = {threshold},\n}};"
    );
}
