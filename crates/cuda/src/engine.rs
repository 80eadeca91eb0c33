//! A model on an NVIDIA GPU.
//!
//! The host checks requests and turns ids into row numbers, hottest first; the device does the rest:
//! bottom MLP, all tables in one launch per type of element, interaction, top MLP. Ids are copied while
//! the bottom MLP runs. Hot rows of all tables lie side by side, so that one window of L2 covers them;
//! they are pinned once, at load. One batch runs at a time: the GPU is the bottleneck, not the host.

mod layers;
mod measure;
mod resolve;
mod rows;
mod stage;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hither_dlrm::model::Model;
use hither_dlrm::plan::Plan;
use hither_dlrm::run::{Done, Gpu, Host, Request, StageTimes};

use self::layers::Layers;
pub use self::measure::{Measured, candidates, measure};
use self::resolve::Resolved;
use self::rows::DeviceRows;
use self::stage::Staged;
use self::stage::{Scratch, Stage};
use crate::Error;
use crate::device::{Device, Queue};

struct CudaEngine {
    /// The tables as the file has them, which check requests.
    host: Arc<Host>,
    device: Arc<Device>,
    stage: Stage,
    layers: Layers,
    work: Mutex<Work>,
}

/// Memory of a batch, kept from call to call.
#[derive(Default)]
struct Work {
    resolved: Resolved,
    dense: Staged,
    stage: Scratch,
    layers: layers::Scratch,
}

/// Puts a model on the GPU of a number, as [`hither_dlrm::run::Options::gpu`] wants it.
pub fn load(
    model: &Model,
    plan: &Plan,
    number: u32,
    host: Arc<Host>,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Box<dyn Gpu>, hither_dlrm::Error> {
    Ok(Box::new(CudaEngine::load(model, plan, number, host, done)?))
}

impl CudaEngine {
    fn load(
        model: &Model,
        plan: &Plan,
        number: u32,
        host: Arc<Host>,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let device = Device::open(number)?;
        let how = plan.cuda.clone().unwrap_or_default();
        let layers = Layers::new(&device, model)?;
        let tables = host.tables();
        let view = tables.view();
        let rows = Arc::new(DeviceRows::upload(&device, &view, plan, how.cold_on_host, done)?);
        let stage = Stage::new(&device, &rows, &view, &how)?;
        Ok(Self { host, device, stage, layers, work: Mutex::default() })
    }

    /// The resolved batch through all stages.
    fn compute(&self, work: &mut Work, samples: usize, out: &mut [f32]) -> Result<(), Error> {
        if samples == 0 {
            return Ok(());
        }
        let computed = self.try_compute(work, samples, out);
        if computed.is_err() {
            // Buffers are used again only when nothing reads them any more.
            for queue in [Queue::Compute, Queue::Copy] {
                let _ = self.device.synchronize(queue);
            }
        }
        computed
    }

    fn try_compute(&self, work: &mut Work, samples: usize, out: &mut [f32]) -> Result<(), Error> {
        let Work { resolved, dense, stage, layers } = work;
        let features = bytemuck::cast_slice::<f32, u8>(&resolved.dense);
        let [dense] = dense.send(&self.device, [features], Queue::Compute)?;
        let batch = self.stage.send(stage, resolved, samples)?;
        let bottom = self.layers.bottom(&self.device, layers, dense, samples)?;
        self.device.wait(Queue::Compute, Queue::Copy)?;
        self.stage.launch(&batch, !resolved.weights.is_empty())?;
        let scores = self.layers.top(&self.device, layers, bottom, batch.out, samples)?;
        scores.read(bytemuck::cast_slice_mut(out))?;
        self.device.synchronize(Queue::Copy)?;
        Ok(())
    }
}

impl Gpu for CudaEngine {
    fn pinned_bytes(&self) -> usize {
        self.stage.pinned_bytes
    }

    fn infer(
        &self,
        requests: &[Request],
        out: &mut [f32],
        results: &mut [Result<(), hither_dlrm::Error>],
    ) -> Done {
        assert_eq!(requests.len(), results.len(), "a result for each request");
        let clock = Instant::now();
        let outputs = self.host.outputs();
        let samples: usize = requests.iter().map(Request::samples).sum();
        assert_eq!(out.len(), samples * outputs, "a place for each score");
        for (request, result) in requests.iter().zip(&mut *results) {
            *result = self.host.check(request);
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let is_good = |index: usize| results[index].is_ok();
        let clamped =
            work.resolved.fill(requests, is_good, &self.host.tables().view(), self.stage.rows());
        if let Err(error) = self.compute(&mut work, samples, out) {
            // The device failed, not a request: all of them hear of it.
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(error.clone().into());
            }
        }
        let mut first = 0;
        for (request, result) in requests.iter().zip(&*results) {
            let end = first + request.samples() * outputs;
            if result.is_err() {
                out[first..end].fill(f32::NAN);
            }
            first = end;
        }
        // Stages overlap on the device, so that all of the time is booked at once.
        let times = StageTimes { tables: clock.elapsed(), ..StageTimes::default() };
        Done { clamped, times }
    }
}
