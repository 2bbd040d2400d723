use super::*;
use latent_types::OpKind;
use std::collections::HashSet;

#[test]
fn the_reference_in_docs_is_the_one_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ir.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, reference_markdown()).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        kept,
        reference_markdown(),
        "docs/ir.md is old: UPDATE_DOCS=1 cargo test --release -p latent-graph reference"
    );
}

#[test]
fn every_operation_has_a_name_of_its_own_and_says_what_it_is() {
    let names: HashSet<&str> = Op::ALL.iter().map(Op::word).collect();
    assert_eq!(names.len(), Op::ALL.len());
    for op in Op::ALL {
        let of = op.reference();
        assert!(!of.what.is_empty() && !of.formula.is_empty() && !of.source.is_empty(), "{}", op.word());
        assert!(!op.inputs().is_empty(), "{}", op.word());
    }
}

/// The names in an expression.
fn names_in(shape: &str) -> Vec<&str> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    shape.split(|c| !name(c)).filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())).collect()
}

#[test]
fn shapes_use_names_of_the_reference() {
    let known: HashSet<&str> = reference::NAMES.iter().flat_map(|(names, _)| names.split(", ")).collect();
    for op in Op::ALL {
        let spec = op.spec();
        let outputs = match spec.outputs {
            Outputs::Ports(ports) => ports.to_vec(),
            Outputs::PerWeight(port) | Outputs::PerPart(port) => vec![port],
        };
        let ports = spec.inputs.iter().chain(&outputs).map(|port| port.shape);
        for shape in ports.chain(spec.slots.iter().map(|slot| slot.shape)) {
            for name in names_in(shape) {
                assert!(known.contains(name), "{}: {name} of {shape} is not in the reference", spec.name);
            }
        }
    }
}

#[test]
fn every_kind_of_kernel_is_required_by_an_operation() {
    let mut required = HashSet::new();
    for op in Op::ALL {
        match op.spec().kernels {
            RequiredKernels::None => {}
            RequiredKernels::Own(kind) => {
                // `bias` adds a vector and shares `add`'s kernels.
                assert_eq!(kind.name(), if op.word() == "bias" { "add" } else { op.word() });
                required.insert(kind);
            }
            RequiredKernels::PerWeight(of, more) => {
                required.extend(op.spec().slots.iter().map(|slot| of(slot.name)));
                required.extend(more);
            }
        }
    }
    for kind in OpKind::ALL {
        assert!(required.contains(kind), "no operation requires a kernel of {}", kind.name());
    }
}
