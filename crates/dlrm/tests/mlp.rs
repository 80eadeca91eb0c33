//! Perceptrons and interactions against what PyTorch computed (fixtures/make.py).

use crate::common;

use common::bounds::{self, BF16_UNIT, Last, Near};
use common::{assert_near, assert_within, expected, fixture, floats, import, variants};
use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::Options;
use hither_dlrm::interact::Interactor;
use hither_dlrm::mlp::{Mlp, Scratch};
use hither_dlrm::model::Layer;
use hither_kernels::detect::{Cpu, cpu};
use hither_kernels::gemm::{Activation, Precision, Rows, RowsMut};

fn forward(mlp: &Mlp, x: &[f32], scratch: &mut Scratch) -> Vec<f32> {
    let rows = x.len() / mlp.inputs();
    let mut y = vec![f32::NAN; rows * mlp.outputs()];
    let out = RowsMut::new(&mut y, rows, mlp.outputs());
    mlp.forward(Rows::new(x, rows, mlp.inputs()), out, scratch);
    y
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

/// How far off each output may be when weights and inputs of all layers are rounded to bf16.
fn bf16_bounds(layers: &[Layer<'_>], x: &[f32]) -> Vec<f64> {
    let outputs = x.chunks(layers[0].inputs).flat_map(|x| {
        let x = x.iter().copied().map(Near::exactly).collect();
        bounds::mlp(layers, x, Last::Sigmoid, BF16_UNIT)
    });
    outputs.map(Near::bound).collect()
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
    for cpu in variants() {
        let mlp = Mlp::new(&layers, Activation::Sigmoid, Precision::Bf16, cpu);
        let y = forward(&mlp, &x, &mut Scratch::default());
        assert_within(&format!("{cpu:?}"), &y, &exact, &bounds);
    }
    // PyTorch rounds the output too.
    let bounds: Vec<f64> = bounds.iter().map(|bound| bound + BF16_UNIT).collect();
    assert_within("PyTorch", &floats(&checkpoint, "output_bf16"), &exact, &bounds);
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
        let (imported, expected) = (import(name, &Options::default()), expected(name));
        for cpu in variants() {
            model_computes(name, &imported.model, &expected, kept_order, cpu);
        }
    }
}

fn model_computes(name: &str, model: &Model, expected: &Checkpoint, kept_order: bool, cpu: Cpu) {
    let scratch = &mut Scratch::default();
    let bottom = Mlp::new(&model.bottom(), Activation::Relu, Precision::F32, cpu);
    let dense = forward(&bottom, &floats(expected, "dense"), scratch);
    assert_near(name, &dense, &floats(expected, "bottom"));

    let interactor = Interactor::new(model, Precision::F32, cpu);
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
