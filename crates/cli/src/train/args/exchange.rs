//! The options of what workers and server send each other, and how long they wait.

use hither_gnn::transport::{Gather, Lost, Patience, Straggler};
use hither_gnn::update::Updates;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Messages")]
pub struct ExchangeArgs {
    /// What workers send back: fp32 (the model), bf16 (its change in 16 bits), or top-k:SHARE (the largest
    /// changes in 16 bits). What is left out is sent later
    #[arg(long, value_name = "FORM", default_value_t)]
    pub updates: Updates,
    /// Who adds the models up over MPI: ordered (the server, in the order of parts: the same bytes as in one process),
    /// or reduce (the MPI library, on the way: less to receive for the server, other last bits)
    #[arg(long, value_name = "HOW", default_value_t)]
    pub gather: Gather,
    /// Slow workers over MPI: wait for them, or skip:FACTOR to leave them out of a round after FACTOR times the
    /// median worker's time. The result then depends on timing
    #[arg(long, value_name = "HOW", default_value_t)]
    pub straggler: Straggler,
    /// Lost ranks over MPI: wait (the job ends, and --resume goes on), or skip[:SECONDS] to leave them out after
    /// so many seconds of silence [10]; needs mpirun --enable-recovery. The result then depends on timing
    #[arg(long, value_name = "HOW", default_value_t)]
    pub lost: Lost,
}

impl ExchangeArgs {
    pub fn patience(&self) -> Patience {
        Patience { straggler: self.straggler, lost: self.lost }
    }

    /// Whether the server may go on without some workers.
    pub fn leaves_out(&self) -> bool {
        self.patience() != Patience::default()
    }

    /// The options by flag, for settings.json.
    pub fn asked(&self) -> [(&'static str, Value); 4] {
        [
            ("updates", json!(self.updates.to_string())),
            ("gather", json!(self.gather.to_string())),
            ("straggler", json!(self.straggler.to_string())),
            ("lost", json!(self.lost.to_string())),
        ]
    }
}
