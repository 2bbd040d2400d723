//! Draws a model: circuit, IR and plans as block diagrams with details of every operation.
//!
//! [`Drawing::make`] runs the passes for every formulation and batch bucket, folds layers of equal
//! structure into blocks, lays them out, and explains each kernel. The result is data:
//! [`Drawing::page`] wraps it into one HTML file, [`Drawing::svg`] writes a view as SVG, and
//! `docs/graph.schema.json` describes its JSON.

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
    ArenaChart, BucketInfo, Buffer, Drawing, DrawingBlock, DrawingOperation, DrawingView, FORMAT, FileInfo,
    FormatInfo, Formula, FormulationInfo, KernelBinding, KvAccess, ModelSummary, OperationCost,
    OperationPort, OperationRun, OperationWeight, PassInfo, PlacedBlock, RejectedKernel, SpecialToken,
    TargetInfo, VERSION, WeightInfo,
};
pub use device::DeviceRuns;
pub use drawing::bucket_key;
pub use options::Options;
pub use page::{InitialView, PageOptions, static_page};
pub use scene::{Primitive, escape};
