//! What does not fit together in a configuration, and options that nothing would use.

use super::{Batch, Facts, MetricName, StepCount, TrainConfig, first_said};
use crate::Error;
use crate::layer::Norm;
use crate::links::pairs::Loss;
use crate::mode::Mode;
use crate::model::{Kind, Model};
use crate::sample::Fanout;

/// Upper bound on the local steps of a round; more is a mistake, most likely in `rho`.
const STEPS_MAX: f64 = 1e7;

fn bad<T>(problem: String) -> Result<T, Error> {
    Err(Error::Settings(problem))
}

impl TrainConfig {
    /// Refuses options that the model, the task or the mode does not use, so that nobody believes that they changed
    /// anything.
    pub(super) fn check(&self, facts: &Facts, built: &Model) -> Result<(), Error> {
        let Self { model, steps, run, by, .. } = self;
        let name = self.model_name(facts.is_user_item);
        let spec = &built.spec;
        let has = |kinds: &[Kind]| spec.layers.iter().any(|kind| kinds.contains(kind));
        let is_light = has(&[Kind::Light]);
        let takes_steps = has(&[Kind::Propagate, Kind::Light]);
        for (option, is_said, is_used, readers) in [
            ("layers", model.layers.is_some(), takes_steps || !name.contains(','), "families"),
            ("heads", model.heads.is_some(), has(&[Kind::Gat, Kind::Gatv2]), "gat and gatv2"),
            ("alpha", model.alpha.is_some(), has(&[Kind::Propagate]), "appnp"),
            ("norm", model.norm.is_some(), has(&[Kind::Gcn]), "gcn"),
            ("dropout", model.dropout.is_some(), !is_light, "models with features"),
            ("batch-norm", model.batch_norm, !is_light, "models with features"),
            ("layer-norm", model.layer_norm, !is_light, "models with features"),
            ("residual", model.residual, !is_light, "models with features"),
        ] {
            if is_said && !is_used {
                return bad(format!(
                    "--{option} is an option of {readers}; --model {name} does not use it"
                ));
            }
        }
        if !matches!(spec.norm, Norm::Symmetric | Norm::Mean) {
            return bad("--norm: expected symmetric or mean".into());
        }
        if has(&[Kind::Embedding]) && facts.link_metric.is_none() {
            return bad(format!(
                "--model {name} has a trained row per node, which learns links only; give --task links, or \
                 another model"
            ));
        }
        if facts.has_weights && !built.reads_edge_weights() {
            return bad(format!(
                "--model {name} does not read weights of edges; use sage, gcn, gin or appnp, or a dataset \
                 without weights"
            ));
        }
        match facts.link_metric {
            Some(_) => self.check_links()?,
            None => self.check_nodes()?,
        }
        let hops = built.needs().hops;
        check_fanout("--fanout", steps.fanout.as_ref(), steps.batch, hops)?;
        if let Some(server) = by.server() {
            check_fanout(
                "--server-fanout",
                server.server_fanout.as_ref(),
                server.server_batch,
                hops,
            )?;
            let steps = self.server_steps(server, facts);
            if server.server_share.is_some() && matches!(steps, StepCount::Fixed(_)) {
                return bad(
                    "--server-share is an option of --server-steps auto; leave one of them out"
                        .into(),
                );
            }
            if by.workers().is_none() && steps == StepCount::Auto {
                return bad(
                    "--mode server-only has no workers whose work would be its budget; give a number of \
                     --server-steps, or use `train compare` with llcg, whose steps it then takes"
                        .into(),
                );
            }
        }
        if by.mode() == Mode::ServerOnly {
            let said = [("batch", steps.batch.is_some()), ("fanout", steps.fanout.is_some())];
            let mut said = said.into_iter().chain([("rho", steps.rho != 1.0)]);
            if let Some((option, _)) = said.find(|(_, is_said)| *is_said) {
                return bad(format!(
                    "--{option} is an option of local steps; --mode server-only takes none"
                ));
            }
        }
        let last = f64::from(steps.local_steps) * steps.rho.powi(run.rounds as i32 - 1);
        if last > STEPS_MAX {
            return bad(format!(
                "with --rho {} the last of {} rounds would take {last:.0} local steps; lower one of them",
                steps.rho, run.rounds
            ));
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), Error> {
        if let Some(metric @ MetricName::Links(_)) = &self.target.metric {
            return bad(format!(
                "--metric {metric} is a score of links; give --task links, or a score of labels"
            ));
        }
        match first_said(&self.links) {
            None => Ok(()),
            Some(option) => bad(format!(
                "{option} is an option of links, and labels are learnt here; give --task links, or leave it out"
            )),
        }
    }

    fn check_links(&self) -> Result<(), Error> {
        let target = &self.target;
        if matches!(self.by.mode(), Mode::PsgdSa | Mode::Ggs) {
            return bad(format!(
                "--mode {} learns labels of nodes only; links are learnt by single, psgd-pa, llcg, \
                 llcg-stale and server-only",
                self.by.mode().name()
            ));
        }
        if let Some(metric @ MetricName::Nodes(_)) = target.metric {
            return bad(format!(
                "--metric {metric} is a score of labels; links have recall@K, ndcg@K, mrr and hits@K"
            ));
        }
        if target.class_weights.is_some() {
            return bad("--class-weights are of labels; links have no classes".into());
        }
        if self.links.temperature.is_some() && self.loss() != Loss::Softmax {
            return bad(
                "--temperature is an option of --loss softmax; leave one of them out".into()
            );
        }
        Ok(())
    }
}

/// A list of numbers must have one for each hop of the model, and a full batch takes all neighbours.
fn check_fanout(
    flag: &str,
    fanout: Option<&Fanout>,
    batch: Option<Batch>,
    hops: usize,
) -> Result<(), Error> {
    let Some(fanout) = fanout else { return Ok(()) };
    if batch == Some(Batch::Full) && *fanout != Fanout::All {
        return bad(format!(
            "{flag} has no effect with a full batch, which takes all neighbours; leave one of them out"
        ));
    }
    if let Fanout::PerHop(most) = fanout
        && most.len() != hops
    {
        let (given, s) = (most.len(), if hops == 1 { "" } else { "s" });
        return bad(format!(
            "{flag} has {given} numbers, but the model has {hops} graph layer{s}; give one number for \
             all layers, or one per layer"
        ));
    }
    Ok(())
}
