//! Fixtures of PyTorch (fixtures/README.md), opened and imported.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod bounds;

use std::path::{Path, PathBuf};

use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::{Import, Options};
use hither_kernels::detect::{Bf16, Cpu, Isa, cpu};
use tempfile::TempDir;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A checkpoint of another program, imported into a directory of its own.
pub struct Imported {
    pub dir: TempDir,
    pub model: Model,
    pub notes: Vec<String>,
}

pub fn import(name: &str, options: &Options) -> Imported {
    let checkpoint = Checkpoint::open(fixture(name)).expect(name);
    let import = Import::read(&checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
    let dir = tempfile::tempdir().expect("a directory");
    import.write(dir.path(), false, &|_| {}).expect("written");
    let model = Model::open(dir.path()).unwrap_or_else(|error| panic!("{error}"));
    Imported { dir, model, notes: import.notes }
}

/// What PyTorch was given, and what it computed.
pub fn expected(name: &str) -> Checkpoint {
    let stem = name.split('.').next().unwrap_or(name);
    Checkpoint::open(fixture(&format!("{stem}.expected.safetensors"))).expect(name)
}

pub fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"));
    tensor.as_f32().expect("floats").into_owned()
}

pub fn integers(checkpoint: &Checkpoint, name: &str) -> Vec<i64> {
    checkpoint.tensors[name].as_i64().expect("integers").into_owned()
}

/// Every instruction set that this processor has, and its best bf16 too.
pub fn variants() -> Vec<Cpu> {
    let mut all: Vec<Cpu> = Isa::available().map(|isa| Cpu { isa, bf16: Bf16::Emulated }).collect();
    all.push(cpu());
    all
}

#[track_caller]
pub fn assert_near(name: &str, found: &[f32], expected: &[f32]) {
    assert_within(name, found, expected, &vec![1e-5; expected.len()]);
}

/// Each value has a bound of its own.
#[track_caller]
pub fn assert_within(name: &str, found: &[f32], expected: &[f32], bounds: &[f64]) {
    assert_eq!((found.len(), bounds.len()), (expected.len(), expected.len()), "{name}");
    for (at, ((found, expected), bound)) in found.iter().zip(expected).zip(bounds).enumerate() {
        let off = f64::from((found - expected).abs());
        assert!(off <= *bound, "{name} [{at}]: {found}, not {expected}: {bound} allowed");
    }
}
