//! `hither serve --demo`: a generated model, and requests to try on it.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use hither_data::scratch::Scratch;
use hither_dlrm::generate::{Shape, generate};

use crate::Common;

/// A repository with one generated model, removed when the server ends.
pub struct Demo {
    dir: Scratch,
}

const SEED: u64 = 0;
const DENSE: usize = 13;
const TABLES: usize = 26;

impl Demo {
    pub fn new() -> Self {
        Self { dir: Scratch::in_temp_dir("hither-serve-demo") }
    }

    pub fn make(&self, common: &Common) -> anyhow::Result<()> {
        let model = self.repository().join("demo");
        std::fs::create_dir_all(&model)
            .with_context(|| format!("cannot create {}", model.display()))?;
        let mut shape = Shape::preset("mlperf")?;
        shape.rows = 10_000;
        shape.dim = 32;
        shape.bottom = vec![DENSE, 64, shape.dim];
        shape.top = vec![64, 1];
        common.say("generating a model of 26 tables of 10,000 rows");
        generate(&shape.spec("demo"), SEED, &model.join("1"), false, &|_| ())?;
        std::fs::write(model.join("config.toml"), "ids_per_bag = 1\n")
            .with_context(|| format!("cannot write {}", model.display()))?;
        Ok(())
    }

    pub fn repository(&self) -> &Path {
        self.dir.path()
    }
}

/// Requests that work as they are printed.
pub fn examples(http: SocketAddr, grpc: SocketAddr) -> String {
    let numbers = |count: usize, number: &dyn Fn(usize) -> String| {
        (0..count).map(number).collect::<Vec<_>>().join(",")
    };
    let dense = numbers(DENSE, &|i| format!("{}", i as f64 / 10.0));
    let sparse = numbers(TABLES, &|i| format!("{}", i * 300));
    format!(
        r#"
# One sample by curl:
curl -s http://{http}/v2/models/demo/infer -d '{{"inputs": [
  {{"name": "dense", "datatype": "FP32", "shape": [1, {DENSE}], "data": [{dense}]}},
  {{"name": "sparse", "datatype": "INT64", "shape": [1, {TABLES}], "data": [{sparse}]}}]}}'

# Sixteen samples over gRPC (pip install 'tritonclient[grpc]'):
python3 -c "
import numpy as np, tritonclient.grpc as triton
dense = triton.InferInput('dense', [16, {DENSE}], 'FP32')
dense.set_data_from_numpy(np.random.rand(16, {DENSE}).astype(np.float32))
sparse = triton.InferInput('sparse', [16, {TABLES}], 'INT64')
sparse.set_data_from_numpy(np.random.randint(0, 10000, (16, {TABLES})))
client = triton.InferenceServerClient('{grpc}')
print(client.infer('demo', [dense, sparse]).as_numpy('scores'))"
"#
    )
}
