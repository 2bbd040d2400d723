//! The drawing of a model: circuit, IR and plans as block diagrams with details of every operation.
//!
//! [`Drawing::make`] runs the passes for every formulation and batch bucket, folds layers of one structure into blocks, lays
//! them out, and explains each kernel. The result is data: [`Drawing::page`] wraps it into one HTML file,
//! [`Drawing::svg`] writes a view as SVG, and its JSON is described by `docs/graph.schema.json`.

#![forbid(unsafe_code)]

mod build;
mod data;
mod device;
mod drawing;
mod layout;
mod options;
mod page;
mod render;
mod scene;
mod style;
mod svg;

pub use data::{
    Binding, Block, BucketInfo, Buffer, Drawing, FORMAT, FileInfo, FormatInfo, Formula, FormulationInfo,
    KernelCall, KvAccess, Memory, ModelSummary, Operation, OperationCost, OperationRun, PassInfo,
    PlacedBlock, Port, RejectedKernel, SpecialToken, TargetInfo, VERSION, View, WeightInfo, WeightUse,
};
pub use device::DeviceRuns;
pub use drawing::bucket_key;
pub use options::Options;
pub use page::{PageOptions, Wanted, static_page};
pub use scene::{Primitive, escape};
