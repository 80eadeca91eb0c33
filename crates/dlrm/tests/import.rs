//! Checkpoints made by PyTorch (fixtures/make.py): understood, written as ours, and evaluated by
//! plain loops to what PyTorch computed.

mod common;

use common::{expected, fixture, import};
use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::{Import, Options};
use hither_dlrm::model::{Interaction, Layer};

fn linear(layer: &Layer<'_>, x: &[f32]) -> Vec<f32> {
    let rows = layer.weight.chunks_exact(layer.inputs).zip(&*layer.bias);
    rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias).collect()
}

fn mlp(layers: &[Layer<'_>], mut x: Vec<f32>, relu_at_the_end: bool) -> Vec<f32> {
    for (index, layer) in layers.iter().enumerate() {
        x = linear(layer, &x);
        if relu_at_the_end || index + 1 < layers.len() {
            x.iter_mut().for_each(|x| *x = x.max(0.0));
        }
    }
    x
}

fn interact(model: &Model, vectors: &[Vec<f32>]) -> Vec<f32> {
    if model.spec.interaction == Interaction::Dot {
        let mut out = vectors[0].clone();
        for i in 1..vectors.len() {
            for j in 0..i {
                out.push(vectors[i].iter().zip(&vectors[j]).map(|(a, b)| a * b).sum());
            }
        }
        return out;
    }
    let x0 = vectors.concat();
    let mut x = x0.clone();
    for layer in model.cross() {
        let rank = layer.w.len() / x0.len();
        let dot = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f32>();
        let inner: Vec<f32> = layer.v.chunks_exact(x0.len()).map(|row| dot(row, &x)).collect();
        let outer = layer.w.chunks_exact(rank).map(|row| dot(row, &inner));
        let next = outer.zip(&*layer.bias).zip(&x0).zip(&x);
        x = next.map(|(((product, bias), x0), x)| x0 * (product + bias) + x).collect();
    }
    x
}

/// The model's outputs for the inputs that were saved with the expected ones.
fn evaluate(model: &Model, inputs: &Checkpoint) -> Vec<f32> {
    let integers = |name: &str| inputs.tensors[name].as_i64().expect("integers").into_owned();
    let (ids, offsets) = (integers("indices"), integers("offsets"));
    let dense = inputs.tensors["dense"].as_f32().expect("floats");
    let features = model.spec.dense_features();
    let batch = dense.len() / features;
    let output = |sample: usize| {
        let x = dense[sample * features..][..features].to_vec();
        let mut vectors = vec![mlp(&model.bottom(), x, true)];
        for (t, table) in model.tables().enumerate() {
            let rows: &[f32] = bytemuck::cast_slice(table.rows);
            let mut sum = vec![0.0; table.spec.dim];
            let bag =
                offsets[t * batch + sample] as usize..offsets[t * batch + sample + 1] as usize;
            for id in &ids[bag] {
                let row = &rows[*id as usize * sum.len()..][..sum.len()];
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            vectors.push(sum);
        }
        let logit = mlp(&model.top(), interact(model, &vectors), false)[0];
        if model.spec.sigmoid { 1.0 / (1.0 + (-logit).exp()) } else { logit }
    };
    (0..batch).map(output).collect()
}

#[track_caller]
fn computes_what_pytorch_does(name: &str, interaction: Interaction) {
    let imported = import(name, &Options::default());
    assert_eq!(imported.model.spec.interaction, interaction);
    let expected = expected(name);
    let wanted = if imported.model.spec.sigmoid { "probability" } else { "logit" };
    let wanted = expected.tensors[wanted].as_f32().expect("floats");
    let found = evaluate(&imported.model, &expected);
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&*wanted) {
        assert!((found - wanted).abs() <= 1e-5, "{found} for {wanted}");
    }
}

#[test]
fn facebook_with_dot_products() {
    computes_what_pytorch_does("dlrm.pt", Interaction::Dot);
}

#[test]
fn facebook_with_a_concatenation() {
    computes_what_pytorch_does("dlrm_cat.pt", Interaction::Cat);
}

#[test]
fn torchrec_from_a_state_dict() {
    computes_what_pytorch_does("torchrec.pt", Interaction::Dot);
}

#[test]
fn torchrec_from_safetensors_whose_names_are_sorted() {
    computes_what_pytorch_does("torchrec.safetensors", Interaction::Dot);
    let notes = import("torchrec.safetensors", &Options::default()).notes;
    assert!(notes.iter().any(|note| note.contains("t_cat_9, t_cat_10")), "{notes:?}");
}

#[test]
fn torchrec_with_cross_layers() {
    computes_what_pytorch_does("torchrec_dcn.safetensors", Interaction::Dcn);
}

#[test]
fn what_the_file_does_not_say_can_be_said() {
    let order = ["t_cat_3", "t_cat_1"].map(String::from).to_vec();
    let options = Options {
        name: Some("mine".into()),
        tables: Some(order),
        pooling: Some(hither_kernels::bag::Pooling::Max),
        logits: Some(false),
        ..Options::default()
    };
    let spec = import("torchrec.pt", &options).model.spec;
    let names: Vec<_> = spec.tables.iter().take(4).map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["t_cat_3", "t_cat_1", "t_cat_0", "t_cat_2"]);
    assert!(spec.sigmoid && spec.name == "mine");
    assert_eq!(spec.tables[0].pooling, hither_kernels::bag::Pooling::Max);
}

#[test]
fn files_without_a_model() {
    for name in ["mlp.safetensors", "dlrm.expected.safetensors"] {
        let checkpoint = Checkpoint::open(fixture(name)).expect(name);
        let error = Import::read(&checkpoint, &Options::default()).expect_err(name).to_string();
        assert!(error.contains("no model that is known") && error.contains(name), "{error}");
    }
}
