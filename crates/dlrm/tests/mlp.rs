//! Perceptrons and interactions against what PyTorch computed (fixtures/make.py).

use std::path::{Path, PathBuf};

use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::{Import, Options};
use hither_dlrm::interact::Interactor;
use hither_dlrm::mlp::{Mlp, Scratch};
use hither_dlrm::model::Layer;
use hither_kernels::detect::{Bf16, Cpu, Isa, cpu};
use hither_kernels::gemm::{Activation, Precision, Rows, RowsMut};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.tensors[name].as_f32().expect("floats").into_owned()
}

fn variants() -> Vec<Cpu> {
    let mut all: Vec<Cpu> = Isa::available().map(|isa| Cpu { isa, bf16: Bf16::Emulated }).collect();
    all.push(cpu());
    all
}

fn forward(mlp: &Mlp, x: &[f32], scratch: &mut Scratch) -> Vec<f32> {
    let rows = x.len() / mlp.inputs();
    let mut y = vec![f32::NAN; rows * mlp.outputs()];
    let out = RowsMut::new(&mut y, rows, mlp.outputs());
    mlp.forward(Rows::new(x, rows, mlp.inputs()), out, scratch);
    y
}

fn assert_near(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(off <= 1e-5, "{name} [{at}]: {found}, not {expected}");
    }
}

/// The layers of `mlp.safetensors`.
fn layers(checkpoint: &Checkpoint) -> Vec<Layer<'_>> {
    let layer = |index: usize| {
        let weight = &checkpoint.tensors[&format!("{index}.weight")];
        Layer {
            inputs: weight.shape[1],
            outputs: weight.shape[0],
            weight: weight.as_f32().expect("floats"),
            bias: checkpoint.tensors[&format!("{index}.bias")].as_f32().expect("floats"),
        }
    };
    [0, 2, 4].map(layer).to_vec()
}

/// How far off each output may be when weights and inputs of all layers are rounded to bf16, each
/// by at most u = 2⁻⁸ of its size: the error of an input and of a product's two factors, added up
/// layer by layer. fp32's own rounding is far below the tenth on top.
fn bf16_bounds(layers: &[Layer<'_>], x: &[f32]) -> Vec<f64> {
    let unit = 2f64.powi(-8);
    let mut bounds = Vec::new();
    for x in x.chunks(layers[0].inputs) {
        let mut x: Vec<(f64, f64)> = x.iter().map(|x| (f64::from(*x), 0.0)).collect();
        for (index, layer) in layers.iter().enumerate() {
            let output = |(weight, bias): (&[f32], &f32)| {
                let terms = weight.iter().map(|w| f64::from(*w)).zip(&x);
                let (mut sum, mut off) = (f64::from(*bias), 0.0);
                for (w, (x, x_off)) in terms {
                    sum += w * x;
                    off += w.abs() * (x_off + (x.abs() + x_off) * (2.0 * unit + unit * unit));
                }
                let hidden = index + 1 < layers.len();
                if hidden { (sum.max(0.0), off) } else { (sum, off / 4.0) }
            };
            x = layer.weight.chunks(layer.inputs).zip(&*layer.bias).map(output).collect();
        }
        bounds.extend(x.iter().map(|(_, off)| 1.1 * off));
    }
    bounds
}

#[test]
fn fp32_is_what_pytorch_computes() {
    let checkpoint = Checkpoint::open(fixture("mlp.safetensors")).expect("the fixture");
    for cpu in variants() {
        let mlp = Mlp::new(&layers(&checkpoint), Activation::Sigmoid, Precision::F32, cpu);
        let y = forward(&mlp, &floats(&checkpoint, "input"), &mut Scratch::default());
        assert_near(&format!("{cpu:?}"), &y, &floats(&checkpoint, "output"));
    }
}

#[test]
fn bf16_is_as_near_as_rounding_allows_and_so_is_pytorchs() {
    let checkpoint = Checkpoint::open(fixture("mlp.safetensors")).expect("the fixture");
    let (layers, x) = (layers(&checkpoint), floats(&checkpoint, "input"));
    let (exact, bounds) = (floats(&checkpoint, "output"), bf16_bounds(&layers, &x));
    let check = |name: &str, y: &[f32], last_rounded: f64| {
        for ((y, exact), bound) in y.iter().zip(&exact).zip(&bounds) {
            let off = f64::from((y - exact).abs());
            assert!(off <= bound + last_rounded, "{name}: {y}, not {exact}: {bound} allowed");
        }
    };
    for cpu in variants() {
        let mlp = Mlp::new(&layers, Activation::Sigmoid, Precision::Bf16, cpu);
        check(&format!("{cpu:?}"), &forward(&mlp, &x, &mut Scratch::default()), 0.0);
    }
    check("PyTorch", &floats(&checkpoint, "output_bf16"), 2f64.powi(-8));
}

#[test]
fn rows_do_not_depend_on_how_they_are_split() {
    let checkpoint = Checkpoint::open(fixture("mlp.safetensors")).expect("the fixture");
    let input = floats(&checkpoint, "input");
    let x: Vec<f32> = input.iter().cycle().take(48 * 250).copied().collect();
    let scratch = &mut Scratch::default();
    for precision in [Precision::F32, Precision::Bf16] {
        let mlp = Mlp::new(&layers(&checkpoint), Activation::Sigmoid, precision, cpu());
        let together = forward(&mlp, &x, scratch);
        for rows in [1, 7, 97, 200] {
            let parts = x.chunks(rows * 48).flat_map(|x| forward(&mlp, x, scratch));
            assert!(parts.eq(together.iter().copied()), "{precision:?}, {rows} at a time");
        }
    }
}

/// Bottom, interaction and top of each fixture, from PyTorch's input of each.
#[test]
fn models_compute_what_pytorch_computes() {
    for (name, kept_order) in [
        ("dlrm.pt", true),
        ("dlrm_cat.pt", true),
        ("torchrec.pt", false), // the importer reorders its products
        ("torchrec_dcn.safetensors", true),
    ] {
        let checkpoint = Checkpoint::open(fixture(name)).expect(name);
        let stem = name.split('.').next().unwrap_or(name);
        let expected =
            Checkpoint::open(fixture(&format!("{stem}.expected.safetensors"))).expect(name);
        let dir = tempfile::tempdir().expect("a directory");
        let import = Import::read(&checkpoint, &Options::default()).expect(name);
        import.write(dir.path(), false, &|_| {}).expect(name);
        let model = Model::open(dir.path()).expect(name);
        for cpu in variants() {
            model_computes(name, &model, &expected, kept_order, cpu);
        }
    }
}

fn model_computes(name: &str, model: &Model, expected: &Checkpoint, kept_order: bool, cpu: Cpu) {
    let scratch = &mut Scratch::default();
    let bottom = Mlp::new(&model.bottom(), Activation::Relu, Precision::F32, cpu);
    let dense = forward(&bottom, &floats(expected, "dense"), scratch);
    assert_near(name, &dense, &floats(expected, "bottom"));

    let interactor = Interactor::new(&model.spec, &model.cross(), Precision::F32, cpu);
    let (pooled, width) = (floats(expected, "embedding"), interactor.width());
    let rows = dense.len() / bottom.outputs();
    let mut met = vec![f32::NAN; rows * width];
    interactor.forward(
        Rows::new(&dense, rows, bottom.outputs()),
        Rows::new(&pooled, rows, pooled.len() / rows),
        RowsMut::new(&mut met, rows, width),
        scratch,
    );
    if kept_order {
        assert_near(name, &met, &floats(expected, "interaction"));
    }

    let top = Mlp::new(&model.top(), Activation::Sigmoid, Precision::F32, cpu);
    assert_near(name, &forward(&top, &met, scratch), &floats(expected, "probability"));
}
