//! The search: all combinations where the budget allows, otherwise one option after the other.

use std::collections::BTreeSet;

use hither_sched::policy::{Entry, Searched};
use indicatif::ProgressBar;
use rayon::prelude::*;
use serde::Serialize;
use toml::Table;

use super::Figure;
use crate::Common;
use crate::runs::{Cell, Plan};
use crate::settings::{self, put};

/// Values of the searched options, by index into their lists; `None`: as given.
type Choice = Vec<Option<usize>>;

/// One setting that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// What it changes, in words of --set.
    pub label: String,
    /// All options that are not the defaults.
    pub settings: Table,
    /// Geometric mean over the cells of its figure over that of the options as given; infinite if a
    /// simulation came to no end.
    #[serde(serialize_with = "finite")]
    pub score: f64,
    /// The figure in each cell.
    pub figures: Vec<f64>,
}

fn finite<S: serde::Serializer>(score: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&Some(*score).filter(|score| score.is_finite()), serializer)
}

pub struct Search<'a> {
    plan: &'a Plan,
    entry: &'static Entry,
    cells: &'a [Cell],
    options: Vec<Searched>,
    figure: Figure,
    budget: usize,
}

impl<'a> Search<'a> {
    pub fn new(
        plan: &'a Plan,
        cells: &'a [Cell],
        options: Vec<Searched>,
        figure: Figure,
        budget: usize,
    ) -> Self {
        Self { plan, entry: plan.policies[0], cells, options, figure, budget }
    }

    /// Combinations of all values, with the one as given.
    fn combinations(&self) -> usize {
        self.options.iter().fold(1usize, |n, option| n.saturating_mul(option.1.len())) + 1
    }

    pub fn trials_max(&self) -> usize {
        self.budget.min(self.combinations())
    }

    /// All settings that were tried, in order; the first is the one as given.
    pub fn run(&self, common: &Common) -> anyhow::Result<Vec<Trial>> {
        let bar = common.bar((self.trials_max() * self.cells.len()) as u64, "simulations");
        let pool = common.pool()?;
        let given: Choice = vec![None; self.options.len()];
        let mut progress = Progress { tried: BTreeSet::new(), trials: Vec::new() };
        let mut attempt = |choices: Vec<Choice>| -> anyhow::Result<Vec<(f64, Choice)>> {
            pool.install(|| self.attempt(&mut progress, choices, &bar))
        };
        attempt(vec![given.clone()])?;
        if self.combinations() <= self.budget {
            attempt(self.all())?;
        } else {
            let mut best = (1.0, given);
            loop {
                let before = best.clone();
                for option in 0..self.options.len() {
                    let with = |value| {
                        let mut choice = best.1.clone();
                        choice[option] = Some(value);
                        choice
                    };
                    let choices = (0..self.options[option].1.len()).map(with).collect();
                    for (score, choice) in attempt(choices)? {
                        if score < best.0 {
                            best = (score, choice);
                        }
                    }
                }
                if best == before {
                    break;
                }
            }
        }
        bar.finish_and_clear();
        Ok(progress.trials)
    }

    fn all(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = vec![Vec::new()];
        for (_, values) in &self.options {
            let with =
                |choice: Choice| (0..values.len()).map(move |v| [&choice[..], &[Some(v)]].concat());
            choices = choices.into_iter().flat_map(with).collect();
        }
        choices
    }

    /// Tries those of the choices that are new, as far as the budget goes. Returns their scores.
    fn attempt(
        &self,
        progress: &mut Progress,
        choices: Vec<Choice>,
        bar: &ProgressBar,
    ) -> anyhow::Result<Vec<(f64, Choice)>> {
        let mut fresh: Vec<(Choice, Table)> = Vec::new();
        for choice in choices {
            let table = self.settings(&choice)?;
            if progress.trials.len() + fresh.len() < self.budget
                && progress.tried.insert(table.to_string())
            {
                fresh.push((choice, table));
            }
        }
        let runs: Vec<(usize, &Cell)> = (0..fresh.len())
            .flat_map(|nth| self.cells.iter().map(move |cell| (nth, cell)))
            .collect();
        let simulate = |&(nth, cell): &(usize, &Cell)| -> anyhow::Result<f64> {
            let cell = Cell { settings: fresh[nth].1.clone(), ..cell.clone() };
            let outcome = self.plan.case(&cell, false)?.run(self.entry);
            bar.inc(1);
            // A setting under which the workload does not end is a bad one.
            Ok(outcome.map_or(f64::INFINITY, |record| self.figure.value(&record.summary)))
        };
        let figures: Vec<anyhow::Result<f64>> = runs.par_iter().map(simulate).collect();
        let figures: Vec<f64> = figures.into_iter().collect::<Result<_, _>>()?;
        let mut scores = Vec::new();
        for ((choice, settings), figures) in fresh.into_iter().zip(figures.chunks(self.cells.len()))
        {
            let given = progress.trials.first().map_or(figures, |trial| &trial.figures);
            let score = geometric_mean(figures.iter().zip(given).map(|(is, was)| is / was));
            scores.push((score, choice.clone()));
            let (label, figures) = (self.label(&choice), figures.to_vec());
            progress.trials.push(Trial { label, settings, score, figures });
        }
        Ok(scores)
    }

    /// The options that are given, with the choice's values.
    fn settings(&self, choice: &Choice) -> anyhow::Result<Table> {
        let mut table = self.plan.settings.clone();
        for ((option, values), value) in self.options.iter().zip(choice) {
            if let Some(value) = value {
                put(&mut table, option, values[*value])?;
            }
        }
        // As the options themselves are written, so that equal settings look alike.
        settings::changed(&settings::settings(&table)?)
    }

    fn label(&self, choice: &Choice) -> String {
        let set = self.options.iter().zip(choice);
        let set = set.filter_map(|((option, values), value)| Some((option, values[(*value)?])));
        let words: Vec<String> = set.map(|(option, value)| format!("{option}={value}")).collect();
        if words.is_empty() { "as given".into() } else { words.join(" ") }
    }
}

/// What has been tried.
struct Progress {
    /// Settings as text: two choices may mean the same.
    tried: BTreeSet<String>,
    trials: Vec<Trial>,
}

fn geometric_mean(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = ratios.fold((0.0, 0u32), |(sum, n), ratio| (sum + ratio.ln(), n + 1));
    (sum / f64::from(n.max(1))).exp()
}
