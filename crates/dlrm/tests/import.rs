//! Checkpoints made by PyTorch (fixtures/make.py): understood, written as ours, and evaluated by
//! plain loops to what PyTorch computed.

mod common;

use common::bounds::score;
use common::{assert_near, expected, fixture, floats, import, integers};
use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::{Import, Options};
use hither_dlrm::model::Interaction;

/// The model's outputs for the inputs that were saved with the expected ones.
fn evaluate(model: &Model, inputs: &Checkpoint) -> Vec<f32> {
    let (ids, offsets) = (integers(inputs, "indices"), integers(inputs, "offsets"));
    let dense = floats(inputs, "dense");
    let features = model.spec.dense_features();
    let batch = dense.len() / features;
    let output = |sample: usize| {
        let mut pooled = Vec::new();
        for (t, table) in model.tables().enumerate() {
            let rows: &[f32] = bytemuck::cast_slice(table.rows);
            let mut sum = vec![0.0; table.spec.dim];
            let bag =
                offsets[t * batch + sample] as usize..offsets[t * batch + sample + 1] as usize;
            for id in &ids[bag] {
                let row = &rows[*id as usize * sum.len()..][..sum.len()];
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            pooled.extend(sum);
        }
        let dense = &dense[sample * features..][..features];
        score(model, dense, &pooled, 0.0).value as f32
    };
    (0..batch).map(output).collect()
}

#[track_caller]
fn computes_what_pytorch_does(name: &str, interaction: Interaction) {
    let imported = import(name, &Options::default());
    assert_eq!(imported.model.spec.interaction, interaction);
    let expected = expected(name);
    let wanted = if imported.model.spec.sigmoid { "probability" } else { "logit" };
    let found = evaluate(&imported.model, &expected);
    assert_near(name, &found, &floats(&expected, wanted));
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
