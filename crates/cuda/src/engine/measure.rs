//! The variants on a real GPU, by the device's own clock.

use std::sync::Arc;

use hither_dlrm::lookups::Lookups;
use hither_dlrm::model::Model;
use hither_dlrm::plan::Plan;
use hither_dlrm::plan::gpu::{Ahead, CudaPlan, Variant};
use hither_dlrm::run::{Request, Sparse};
use hither_dlrm::tables::Tables;
use hither_kernels::bag::Table;
use serde::Serialize;

use super::{DeviceRows, Resolved, Scratch, Stage};
use crate::Limits;
use crate::bags::THREADS;
use crate::device::{Device, Queue};
use crate::occupancy::Arch;

/// One variant, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub variant: &'static str,
    pub distance: u32,
    pub min_blocks: u32,
    /// The fastest of all rounds, over the batches of the trace.
    pub ns_per_lookup: f64,
    #[serde(skip)]
    pub plan: CudaPlan,
}

/// Times some variants of the embedding stage on a model's own tables, `rounds` times in turn. The cost
/// of pinning is part of a round, which goes through all batches once. `plan` tells the hot rows.
pub fn measure(
    model: &Model,
    plan: &Plan,
    lookups: &Lookups,
    number: u32,
    candidates: &[CudaPlan],
    rounds: usize,
    done: &dyn Fn(usize, usize),
) -> Result<Vec<Measured>, hither_dlrm::Error> {
    let device = Device::open(number)?;
    let tables = Tables::load(model, &plan.mapped(), &|_| {})?;
    let view = tables.view();
    let cold_on_host = plan.cuda.as_ref().is_some_and(|cuda| cuda.cold_on_host);
    let rows = Arc::new(DeviceRows::upload(&device, &view, plan, cold_on_host, &|_| {})?);
    let batches = resolved(lookups, &view, &rows);
    let ids: usize = batches.iter().map(|batch| batch.rows.len()).sum();
    let mut measured: Vec<Measured> = Vec::new();
    let mut scratch = Scratch::default();
    for round in 0..rounds {
        for (index, how) in candidates.iter().enumerate() {
            done(round * candidates.len() + index, rounds * candidates.len());
            // The window of a pinning variant must not help the next one, so each round pins anew.
            let stage = Stage::new(&device, &rows, &view, how)?;
            let mut milliseconds = f64::from(stage.pin_ms);
            for batch in &batches {
                let sent = stage.send(&mut scratch, batch, lookups.batch)?;
                device.synchronize(Queue::Copy)?;
                let launch = || stage.launch(&sent, !batch.weights.is_empty());
                milliseconds += f64::from(device.time(launch)?);
            }
            let ns_per_lookup = milliseconds * 1e6 / ids.max(1) as f64;
            match measured.get_mut(index) {
                Some(known) => known.ns_per_lookup = known.ns_per_lookup.min(ns_per_lookup),
                None => measured.push(Measured {
                    variant: how.variant.name,
                    distance: how.distance,
                    min_blocks: how.min_blocks,
                    ns_per_lookup,
                    plan: how.clone(),
                }),
            }
        }
    }
    Ok(measured)
}

/// Every variant; those that fetch ahead with three distances, and all with and without a register cap.
pub fn candidates(limits: &Limits, cold_on_host: bool) -> Vec<CudaPlan> {
    let blocks_max = Arch::for_version(limits.version).blocks_max(THREADS);
    let mut all = Vec::new();
    for variant in Variant::ALL {
        let distances: &[u32] = match variant.ahead {
            Ahead::None => &[4],
            _ => &[2, 4, 8],
        };
        for distance in distances {
            let plan =
                |min_blocks| CudaPlan { variant, distance: *distance, min_blocks, cold_on_host };
            all.extend([0, blocks_max * 3 / 4, blocks_max].map(plan));
        }
    }
    all
}

fn resolved(lookups: &Lookups, view: &[Table<'_>], rows: &DeviceRows) -> Vec<Resolved> {
    let one = |k: usize| {
        let bags = lookups.bags(k);
        let request = Request { dense: &[], sparse: Sparse::Joined(bags) };
        let mut resolved = Resolved::default();
        resolved.fill(&[request], |_| true, view, rows);
        resolved
    };
    (0..lookups.len()).map(one).collect()
}
