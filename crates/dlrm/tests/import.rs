//! Checkpoints made by PyTorch (fixtures/make.py): understood, written as ours, and evaluated by
//! plain loops to what PyTorch computed.

use crate::common;

use common::bounds::score;
use common::{Imported, assert_near, expected, fixture, floats, import, integers, variants};
use hither_data::Checkpoint;
use hither_dlrm::Model;
use hither_dlrm::import::{Import, Options};
use hither_dlrm::model::{Interaction, Layout};
use hither_dlrm::plan::Plan;
use hither_dlrm::run::{Engine, Options as EngineOptions, Request, Worker};
use hither_kernels::bag::quant::Foreign;
use hither_kernels::bag::{Bags, Dtype, Ids, Pooling, Prepared, Scratch};

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
        pooling: Some(Pooling::Max),
        logits: Some(false),
        ..Options::default()
    };
    let spec = import("torchrec.pt", &options).model.spec;
    let names: Vec<_> = spec.tables.iter().take(4).map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["t_cat_3", "t_cat_1", "t_cat_0", "t_cat_2"]);
    assert!(spec.sigmoid && spec.name == "mine");
    assert_eq!(spec.tables[0].pooling, Pooling::Max);
}

#[test]
fn facebook_with_products_of_features_with_themselves() {
    computes_what_pytorch_does("dlrm_itself.pt", Interaction::DotItself);
    engine_computes("dlrm_itself", &import("dlrm_itself.pt", &Options::default()).model);
}

/// Pooled rows and scores of the engine, on every instruction set.
#[track_caller]
fn engine_computes(name: &str, model: &Model) {
    let expected = expected(name);
    let (dense, ids) = (floats(&expected, "dense"), integers(&expected, "indices"));
    let offsets = integers(&expected, "offsets");
    let samples = expected.tensors["dense"].shape[0];
    let request = Request::new(samples, &dense, &ids, &offsets);
    let bags = Bags { batch: samples, ids: Ids::I64(&ids), offsets: &offsets, weights: None };
    for cpu in variants() {
        let plan = Plan { threads: 1, ..Plan::standard(&model.spec) };
        let options = EngineOptions { cpu, ..EngineOptions::default() };
        let engine = Engine::load(model, &plan, options, &|_| {}).expect("loaded");
        let mut worker = Worker::default();
        let tables = engine.tables();
        let mut pooled = vec![f32::NAN; samples * tables.width()];
        let prepared = Prepared::new(tables.view(), Vec::new(), cpu.isa).expect("tables");
        prepared.pool(&bags, &mut pooled, &mut Scratch::default()).expect("pooled");
        assert_near(name, &pooled, &floats(&expected, "embedding"));
        let mut scores = vec![f32::NAN; samples];
        engine.infer_one(&request, &mut scores, &mut worker, None).expect("scored");
        let wanted = if model.spec.sigmoid { "probability" } else { "logit" };
        assert_near(name, &scores, &floats(&expected, wanted));
    }
}

fn tables(names: &[&str]) -> Options {
    let names = names.iter().map(|name| name.to_string()).collect();
    Options { tables: Some(names), ..Options::default() }
}

#[track_caller]
fn refused(name: &str, options: &Options, expected: &str) {
    let checkpoint = Checkpoint::open(fixture(name)).expect(name);
    let error = Import::read(&checkpoint, options).expect_err(expected).to_string();
    assert!(error.contains(expected) && error.contains(name), "{error}");
}

#[test]
fn a_table_of_two_features_is_stored_once() {
    for (name, interaction) in
        [("torchrec_shared.pt", Interaction::Dot), ("torchrec_shared_dcn.pt", Interaction::Dcn)]
    {
        let Imported { model, .. } = import(name, &tables(&["user", "author=user"]));
        assert_eq!(model.spec.interaction, interaction);
        let named: Vec<_> = (model.spec.tables.iter())
            .map(|table| (table.name.as_str(), table.shares.as_deref()))
            .collect();
        let expected = [("user", None), ("author", Some("user")), ("item", None), ("zip", None)];
        assert_eq!(named, expected);
        let bytes: u64 = model.spec.tables.iter().map(|table| table.bytes()).sum();
        assert_eq!(bytes, (20 + 30 + 7) * 8 * 4);
        let data: Vec<_> = model.tables().map(|table| table.rows.as_ptr()).collect();
        assert_eq!(data[0], data[1]);
        engine_computes(name, &model);
    }
}

#[test]
fn torchrec_with_a_projection() {
    let options = tables(&["user", "user"]);
    let Imported { model, .. } = import("torchrec_projection.pt", &options);
    assert_eq!(model.spec.interaction, Interaction::Projection);
    engine_computes("torchrec_projection", &model);
    let hint = "40 would fit 4 features: if features share a table";
    refused("torchrec_projection.pt", &Options::default(), hint);
    let cat = Options { interaction: Some(Interaction::Cat), ..options };
    refused("torchrec_projection.pt", &cat, "which fits projection; leave out --interaction");
}

#[test]
fn shared_rows_are_quantised_and_exported() {
    let Imported { model, dir, .. } = import("torchrec_shared.pt", &tables(&["user", "user"]));
    let out = dir.path().join("int8");
    let dtypes = [Dtype::Int8, Dtype::F32, Dtype::F32, Dtype::F16];
    let spec = model.convert(&dtypes, &out, false, &|_| {}).expect("converted");
    assert_eq!(spec.tables[1].dtype, Dtype::Int8);
    let int8 = Model::open(&out).expect("opened");
    let file = dir.path().join("file.safetensors");
    int8.export(Layout::Fbgemm, &file, &|_| {}).expect("exported");
    // Other programs have a table per feature.
    let checkpoint = Checkpoint::open(&file).expect("opened");
    assert_eq!(checkpoint.tensors["emb_l.1.weight"].shape, [20, 12]);
    assert_eq!(
        *checkpoint.tensors["emb_l.0.weight"].bytes,
        *checkpoint.tensors["emb_l.1.weight"].bytes
    );
}

#[test]
fn sharing_that_the_file_does_not_tell_is_asked_for() {
    let advice = "--tables user,user,item,zip";
    refused("torchrec_shared.pt", &Options::default(), "18 would fit 4 features");
    refused("torchrec_shared.pt", &Options::default(), advice);
    refused("torchrec_shared_dcn.pt", &Options::default(), advice);
    let twice = "`user` and `user.2` share rows: is a table named once too often?";
    refused("torchrec_shared.pt", &tables(&["user", "user", "user"]), twice);
    refused(
        "torchrec_shared.pt",
        &tables(&["a=user", "a=user"]),
        "more than one feature is named `a`",
    );
    let checkpoint = Checkpoint::open(fixture("torchrec_shared.pt")).expect("opened");
    let error = Import::read(&checkpoint, &tables(&["a=x"])).expect_err("no table").to_string();
    assert!(error.contains("there is no table `x`; there are user, item, zip"), "{error}");
}

#[test]
fn quantised_modules_compute_what_they_computed() {
    let Imported { model, .. } = import("torchrec_quantised.pt", &Options::default());
    let named: Vec<_> = (model.spec.tables.iter())
        .map(|table| (table.name.as_str(), table.dim, table.dtype, table.shares.as_deref()))
        .collect();
    let expected = [
        ("user", 8, Dtype::Int8, None),
        ("user.2", 8, Dtype::Int8, Some("user")),
        ("item", 8, Dtype::Int4, None),
        ("zip", 8, Dtype::F16, None),
    ];
    assert_eq!(named, expected);
    engine_computes("torchrec_quantised", &model);
    for name in ["torchrec_int8", "torchrec_int4"] {
        let Imported { model, .. } = import(&format!("{name}.pt"), &Options::default());
        engine_computes(name, &model);
    }
}

#[test]
fn poolings_that_differ_are_asked_for() {
    let advice = "such as --tables b,c,a --pooling sum,a=mean";
    refused("torchrec_poolings.pt", &Options::default(), advice);
    refused("torchrec_poolings.pt", &tables(&["b", "a", "c"]), advice);
    let poolings = vec![("a".into(), Pooling::Mean)];
    let options = Options { poolings, ..tables(&["b", "a", "c"]) };
    engine_computes("torchrec_poolings", &import("torchrec_poolings.pt", &options).model);
    let unknown = Options { poolings: vec![("x".into(), Pooling::Mean)], ..options };
    let checkpoint = Checkpoint::open(fixture("torchrec_poolings.pt")).expect("opened");
    let error = Import::read(&checkpoint, &unknown).expect_err("no feature").to_string();
    assert!(error.contains("there is no table `x`; there are b, a, c"), "{error}");
}

#[test]
fn quantised_modules_that_do_not_tell_the_shared_table() {
    let advice = "3 features look up 2 tables, and the file does not say which";
    refused("torchrec_unclear.pt", &Options::default(), advice);
    let Imported { model, .. } = import("torchrec_unclear.pt", &tables(&["a", "b", "b"]));
    engine_computes("torchrec_unclear", &model);
    let rows = Options { rows: Some(Foreign::FbgemmInt8), ..Options::default() };
    refused("torchrec_int8.pt", &rows, "leave out --rows");
    refused("torchrec_shared.pt", &rows, "--rows is for tables of bytes, and the file has none");
}

/// Older versions of TorchRec save the rows alone.
#[test]
fn padded_rows_without_their_module() {
    let mut checkpoint = Checkpoint::open(fixture("torchrec_int8.pt")).expect("opened");
    checkpoint.tensors.retain(|name, _| !name.contains(".tbes."));
    let options = Options { rows: Some(Foreign::FbgemmInt8), ..Options::default() };
    let import = Import::read(&checkpoint, &options).expect("understood");
    assert_eq!(import.spec.tables[0].dim, 8);
    let dir = tempfile::tempdir().expect("a directory");
    import.write(dir.path(), false, &|_| {}).expect("written");
    engine_computes("torchrec_int8", &Model::open(dir.path()).expect("opened"));
    let error = Import::read(&checkpoint, &Options::default()).expect_err("bytes").to_string();
    assert!(error.contains("name the layout of quantised rows with --rows"), "{error}");
}

#[test]
fn safetensors_of_a_quantised_module() {
    let mut checkpoint = Checkpoint::open(fixture("torchrec_int8.pt")).expect("opened");
    checkpoint.order = None;
    let import = Import::read(&checkpoint, &Options::default()).expect("understood");
    assert!(import.notes[0].contains("taken as a, b"), "{:?}", import.notes);
    let mut shared = Checkpoint::open(fixture("torchrec_quantised.pt")).expect("opened");
    shared.order = None;
    let error = Import::read(&shared, &Options::default()).expect_err("no order").to_string();
    assert!(error.contains("4 features look up 3 tables"), "{error}");
}

#[test]
fn files_without_a_model() {
    for name in ["mlp.safetensors", "dlrm.expected.safetensors"] {
        let checkpoint = Checkpoint::open(fixture(name)).expect(name);
        let error = Import::read(&checkpoint, &Options::default()).expect_err(name).to_string();
        assert!(error.contains("not a known model") && error.contains(name), "{error}");
    }
}
