//! The policies, one file each. To add one: write its file, and add its line to [`TABLE`].

use hither_core::Seconds;
use serde_json::Value;

use crate::event::Timer;
use crate::job::JobId;
use crate::state::Turn;

pub mod dally;
mod fair_share;
mod fifo;
mod first_fit;
mod gandiva;
mod leases;
mod placing;
mod queue;
mod replan;
mod search;
mod settings;
mod shortest;
mod tiresias;

pub use placing::Placing;
pub use search::Searched;
pub use settings::Settings;

/// Chooses who runs where. Called by [`crate::decide::Scheduler`], which keeps the books.
///
/// A policy that stops a job puts it back in line itself, or starts it at once somewhere else. For
/// all else that happens to a job the scheduler calls one of the first three methods.
pub trait Policy: Send {
    /// The job waits from now on: it has arrived, may start again, lost its GPUs with a machine, or its start
    /// was refused.
    fn enqueue(&mut self, turn: &mut Turn, id: JobId);

    /// The job is over, or may not start for now.
    fn forget(&mut self, turn: &mut Turn, id: JobId);

    /// The job runs, though this policy did not just start it: its stop was refused.
    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.forget(turn, id);
    }

    /// The job holds its GPUs from now on. Policies hear of it after `adopt`.
    fn started(&mut self, _id: JobId) {}

    /// What is known of a running job is another: its progress, its pace, or what a tier costs it.
    fn revised(&mut self, _id: JobId) {}

    /// The best tier of a waiting job is another: machines joined, or changed their size.
    fn reconsider(&mut self, _turn: &mut Turn, _id: JobId) {}

    /// A timer that this policy set has run out.
    fn timer(&mut self, _turn: &mut Turn, _timer: Timer) {}

    /// What the policy must not forget when it is started again. Its options are not part of that:
    /// they come from the configuration. Nor are alarms, which the scheduler sets again.
    fn save(&self) -> Value;

    /// Takes what `save` gave.
    fn load(&mut self, saved: Value) -> Result<(), serde_json::Error>;

    /// The state has changed: start and preempt.
    fn schedule(&mut self, turn: &mut Turn);

    /// Whether the policy cannot do without true lengths. No real cluster can tell it those: such a
    /// policy is a bound to compare with.
    fn is_clairvoyant(&self) -> bool {
        false
    }

    /// Waiting jobs in the order in which they are asked; `None`: the policy keeps no such order.
    fn line(&self) -> Option<Vec<JobId>> {
        None
    }

    /// How long a job may wait until no younger one overtakes it.
    fn overtaking_s_max(&self) -> Option<Seconds> {
        None
    }
}

/// `save` and `load` of a policy that serialises as a whole, but for its options.
macro_rules! saved_whole {
    ($($options:ident)?) => {
        fn save(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("policies are plain values")
        }

        fn load(&mut self, saved: serde_json::Value) -> Result<(), serde_json::Error> {
            let loaded: Self = serde_json::from_value(saved)?;
            *self = Self { $($options: std::mem::take(&mut self.$options),)? ..loaded };
            Ok(())
        }
    };
}
use saved_whole;

#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    pub build: fn(&Settings) -> Box<dyn Policy>,
}

pub const TABLE: &[Entry] = &[
    Entry { name: "dally", about: dally::ABOUT, build: |s| dally::auto(&s.dally) },
    Entry {
        name: "dally-no-wait",
        about: dally::ABOUT_NO_WAIT,
        build: |s| dally::no_wait(&s.dally),
    },
    Entry {
        name: "dally-consolidate",
        about: dally::ABOUT_CONSOLIDATE,
        build: |s| dally::consolidate(&s.dally),
    },
    Entry { name: "dally-manual", about: dally::ABOUT_MANUAL, build: |s| dally::manual(&s.dally) },
    Entry {
        name: "dally-no-preempt",
        about: dally::ABOUT_NO_PREEMPT,
        build: |s| dally::no_preempt(&s.dally),
    },
    Entry { name: "tiresias", about: tiresias::ABOUT, build: |s| tiresias::las(&s.tiresias) },
    Entry {
        name: "tiresias-authors",
        about: tiresias::ABOUT_AUTHORS,
        build: |s| tiresias::authors(&s.tiresias),
    },
    Entry {
        name: "tiresias-strict",
        about: tiresias::ABOUT_STRICT,
        build: |s| tiresias::strict(&s.tiresias),
    },
    Entry {
        name: "tiresias-plus",
        about: tiresias::ABOUT_PLUS,
        build: |s| tiresias::plus(&s.tiresias),
    },
    Entry {
        name: "gittins",
        about: tiresias::ABOUT_GITTINS,
        build: |s| tiresias::gittins(&s.tiresias),
    },
    Entry { name: "gandiva", about: gandiva::ABOUT, build: |s| gandiva::gandiva(&s.gandiva) },
    Entry {
        name: "gandiva-rack",
        about: gandiva::ABOUT_RACK,
        build: |s| gandiva::rack(&s.gandiva),
    },
    Entry { name: "themis", about: leases::ABOUT_THEMIS, build: |s| leases::themis(&s.themis) },
    Entry { name: "las", about: leases::ABOUT_LAS, build: |s| leases::las(&s.las) },
    Entry {
        name: "las-strict",
        about: leases::ABOUT_LAS_STRICT,
        build: |s| leases::las_strict(&s.las),
    },
    Entry { name: "fifo", about: fifo::ABOUT, build: |_| Box::<fifo::Fifo>::default() },
    Entry {
        name: "first-fit",
        about: first_fit::ABOUT,
        build: |_| Box::<first_fit::FirstFit>::default(),
    },
    Entry { name: "srtf", about: shortest::ABOUT_SRTF, build: |s| shortest::srtf(&s.srtf) },
    Entry {
        name: "srtf-strict",
        about: shortest::ABOUT_SRTF_STRICT,
        build: |s| shortest::srtf_strict(&s.srtf),
    },
    Entry { name: "srsf", about: shortest::ABOUT_SRSF, build: |s| shortest::srsf(&s.srtf) },
    Entry {
        name: "fair-share",
        about: fair_share::ABOUT,
        build: |_| Box::<fair_share::FairShare>::default(),
    },
];

pub fn find(name: &str) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.name == name)
}
