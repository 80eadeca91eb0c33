//! Chooses how to cut a graph by probes of the parts.

use std::sync::Arc;

use hither_core::record::train::{Probed, Setup};

use super::Cut;
use crate::config::{Facts, TrainConfig, WorkerConfig};
use crate::partition::Method;
use crate::probe::{Drift, Probe};
use crate::{Dataset, Error};

/// Methods that keep parts alike, those that cut fewer edges first. METIS alone is not among them: what it gains in cut
/// edges it loses by uneven parts.
const TRIED: [Method; 3] = [Method::MetisEven, Method::Clusters, Method::Random];
/// How much more uneven parts may mislead than cut edges do. To the first order unevenness cancels in the workers' average,
/// and what cut edges do to all of them does not.
const UNEVEN_FOR_CUT: f64 = 8.0;

/// Cuts no more edges than it takes to make the parts alike: takes the first method with which uneven parts do not mislead
/// much more than cut edges.
pub fn alike(
    config: &TrainConfig,
    workers: &WorkerConfig,
    data: &Arc<Dataset>,
) -> Result<Cut, Error> {
    let plan = config.resolve(&Facts::of(data))?;
    let mut probe = Probe::new(&plan.settings, &plan.model, data)?;
    let mut probed = vec![];
    let mut chosen = None;
    for method in TRIED {
        let parts = Cut::by(&Cut::settings(workers, method, config.run.seed), data)?;
        let Drift { cut, uneven } = probe.drift(&parts.partition);
        probed.push(Probed { partition: method.name().into(), cut, uneven });
        chosen = Some(parts);
        if uneven <= UNEVEN_FOR_CUT * cut {
            break;
        }
    }
    let Some(chosen) = chosen else { return Ok(Cut::none(data)) };
    Ok(Cut { setup: Setup { probe: probe.work, probed, ..Setup::default() }, ..chosen })
}
