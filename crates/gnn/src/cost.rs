//! What a round costs beside its work: the bytes that cross the network, and the time that a cluster would take.

use hither_core::record::train::{Bytes, CriticalPath, Works};

use crate::mode::Corrects;
use crate::model::Weights;
use crate::train::Trainer;
use crate::transport::Answer;
use crate::update::Updates;

impl Trainer {
    /// Bytes of the models of all workers, sent in some form: of a table, each has the rows of its nodes.
    pub fn models_bytes(&self, form: Updates) -> u64 {
        let Weights { params, stats } = &self.global;
        match &self.view {
            Some(view) => view.bytes(&self.global, form),
            None => self.workers.parts().len() as u64 * form.bytes(params.len(), stats.len()),
        }
    }

    /// What crossed the network: every worker's model both ways, and what workers fetched.
    pub(crate) fn bytes(&self, answers: &[Answer]) -> Bytes {
        let mut bytes = Bytes::default();
        if self.settings.mode.is_distributed() {
            for Answer { learnt, .. } in answers {
                // Of a table, the rows of the worker's nodes.
                let Weights { params, stats } = &learnt.weights;
                bytes.model_down_bytes += learnt.weights.bytes();
                bytes.model_up_bytes += self.settings.updates().bytes(params.len(), stats.len());
                bytes.add(&learnt.bytes);
            }
        }
        bytes
    }

    /// Model bytes of a round on the link that takes longest. A star sends all models through the server's. A tree of
    /// all machines broadcasts one model and sums up what comes back, each level after the one before; it needs
    /// models that are alike and can be summed as they travel.
    fn busiest_link(&self, bytes: &Bytes) -> u64 {
        let star = bytes.model_down_bytes + bytes.model_up_bytes;
        let workers = self.workers.parts().len();
        let levels = u64::from(usize::BITS - workers.leading_zeros());
        let can_sum = self.view.is_none() && self.settings.updates() == Updates::Fp32;
        if can_sum { star.min(2 * levels * self.global.bytes()) } else { star }
    }

    /// The time of the round if every worker and the server had a machine of its own.
    pub(crate) fn critical_path(
        &self,
        answers: &[Answer],
        works: &Works,
        bytes: &Bytes,
    ) -> CriticalPath {
        let machine = &self.settings.machine;
        let worker_s = |Answer { learnt, .. }: &Answer| {
            machine.seconds(learnt.work) + machine.transfer_s(learnt.bytes.total())
        };
        let workers_s = answers.iter().map(worker_s).fold(0.0, f64::max);
        let steps_s = machine.seconds(works.server);
        let waited_s = match self.settings.mode.does().corrects {
            // Hidden behind the workers, as far as it is not longer.
            Corrects::Meanwhile => (steps_s - workers_s).max(0.0),
            _ => steps_s,
        };
        CriticalPath {
            workers_s,
            transfer_s: machine.transfer_s(self.busiest_link(bytes)),
            server_s: waited_s + machine.seconds(works.judge),
        }
    }
}
