//! The fate of one job at one look: one function from what the books say and what the engine shows to the
//! news for the scheduler and the order for the engine, as in a Kubernetes reconcile.
//!
//! It remembers nothing. [`Facts`] hold all that it decides by, `jobs.rs` gathers them and carries out what
//! comes of them. The driver asks twice per look: for the news before the scheduler decides, and for the orders
//! after.

/// Where the scheduler's books have the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Books {
    /// They do not have it.
    #[default]
    Unknown,
    Waiting,
    /// It waits, and may not start.
    Parked,
    Starting,
    Running,
    Stopping,
}

/// What the engine shows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shown {
    /// Nothing: it has forgotten the job.
    Gone,
    Over,
    #[default]
    Held,
    Queued,
    Running,
    /// It is being ended or requeued and still holds its GPUs.
    Leaving,
}

/// What keeps the job from starting, wherever there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bar {
    #[default]
    None,
    /// It may start later: somebody holds it, it depends on something, or a limit is reached.
    Now,
    /// Only the engine can deal with it: Hither cannot place it, or has tried often enough.
    Always,
}

/// How what was decided fares with the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Asking {
    /// It is not time yet: a start waits for stops, a stop for the end of the grace time.
    Later,
    /// It is time to send the signal that precedes a stop.
    Signal,
    #[default]
    Now,
    /// It has not come about in time, or the engine has said that it will not.
    Failed,
}

/// All that decides the fate of a job at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    pub books: Books,
    pub shown: Shown,
    pub bar: Bar,
    pub asking: Asking,
    /// Somebody else holds it: not even the engine's own scheduler may have it.
    pub is_held_by_others: bool,
    /// It is bound to the nodes that were decided.
    pub is_bound: bool,
    /// It runs where the books have it.
    pub is_there: bool,
    /// The engine put it back in its own queue, as after the failure of a node.
    pub is_requeued: bool,
    /// Hither has released it for this start.
    pub is_released: bool,
    /// The engine can stop it and start it again.
    pub can_stop: bool,
    /// It has been leaving for longer than that may take.
    pub is_stuck: bool,
}

/// News of the job for the scheduler's books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    Submitted,
    Parked,
    Unparked,
    Started,
    /// It waits again, and is parked at once if it may not start: another start would be decided otherwise.
    StartRefused,
    Stopped,
    StopRefused,
    /// It runs on, and may have reported progress.
    Progress,
    /// It has lost its GPUs and waits again.
    Lost,
    /// It runs on GPUs that the books do not have it on.
    RunsElsewhere,
    Ended,
    /// It is the engine's from now on.
    Left,
    /// Somebody has released it by hand: it is the engine's from now on.
    TakenBack,
}

/// What the engine is to do with the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Bind,
    Release,
    Hold,
    HandOver,
    Signal,
    Requeue,
}

pub fn reconcile(facts: &Facts) -> (Option<News>, Option<Act>) {
    use {Act as O, News as N};
    let Facts { books, shown, bar, asking, .. } = *facts;
    let news = |news: News| (Some(news), None);
    let order = |act: Act| (None, Some(act));
    const NOTHING: (Option<News>, Option<Act>) = (None, None);
    match (books, shown) {
        // A job is Hither's if it is held for nobody else and can be placed; all others are the engine's.
        (Books::Unknown, Shown::Held) => match bar {
            Bar::Always if facts.is_held_by_others => NOTHING,
            Bar::Always => order(O::HandOver),
            Bar::None | Bar::Now => news(N::Submitted),
        },
        (Books::Unknown, _) => NOTHING,
        (_, Shown::Gone | Shown::Over) => news(N::Ended),

        (Books::Waiting | Books::Parked, Shown::Held) => match (bar, books) {
            (Bar::Always, _) => news(N::Left),
            (Bar::Now, Books::Waiting) => news(N::Parked),
            (Bar::None, Books::Parked) => news(N::Unparked),
            _ => NOTHING,
        },
        (Books::Waiting | Books::Parked, Shown::Queued) => match facts.is_requeued {
            true => order(O::Hold),
            false => news(N::TakenBack),
        },
        (Books::Waiting | Books::Parked, Shown::Running) => news(N::RunsElsewhere),

        (Books::Starting, Shown::Held) => match (bar, asking) {
            (Bar::Always, _) => news(N::Left),
            (Bar::Now, _) | (_, Asking::Failed) => news(N::StartRefused),
            (_, Asking::Later) => NOTHING,
            _ if facts.is_bound => order(O::Release),
            _ => order(O::Bind),
        },
        (Books::Starting, Shown::Queued) => match asking {
            Asking::Failed => order(O::Hold),
            _ if facts.is_released && facts.is_bound => NOTHING,
            // Held and released it starts at once, where the engine would let it wait.
            _ if facts.is_requeued || facts.is_bound => order(O::Hold),
            _ => news(N::TakenBack),
        },
        (Books::Starting, Shown::Running) => match facts.is_there && asking != Asking::Later {
            true => news(N::Started),
            false => news(N::RunsElsewhere),
        },

        (Books::Running, Shown::Held | Shown::Queued) => news(N::Lost),
        (Books::Running, Shown::Running) if facts.is_there => news(N::Progress),
        (Books::Running, Shown::Running) => news(N::RunsElsewhere),

        (Books::Stopping, Shown::Held | Shown::Queued) => news(N::Stopped),
        (Books::Stopping, Shown::Running) => match asking {
            _ if !facts.can_stop => news(N::StopRefused),
            Asking::Failed => news(N::StopRefused),
            Asking::Signal => order(O::Signal),
            Asking::Later => NOTHING,
            Asking::Now => order(O::Requeue),
        },
        // Nobody knows when its GPUs will be free: neither it nor another may be promised them.
        (_, Shown::Leaving) if facts.is_stuck => news(N::Left),
        (_, Shown::Leaving) => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Act as O;
    use Books as B;
    use News as N;
    use Shown as S;

    /// Facts of a job about which nothing is remarkable.
    fn plain(books: Books, shown: Shown) -> Facts {
        Facts { books, shown, is_there: true, can_stop: true, ..Facts::default() }
    }

    type Cell = (Option<News>, Option<Act>);
    const NOTHING: Cell = (None, None);

    const fn news(news: News) -> Cell {
        (Some(news), None)
    }

    const fn order(act: Act) -> Cell {
        (None, Some(act))
    }

    /// By row of the books: gone, over, held, queued, running, leaving.
    #[rustfmt::skip]
    const TABLE: [(Books, [Cell; 6]); 6] = [
        (B::Unknown, [NOTHING, NOTHING, news(N::Submitted), NOTHING, NOTHING, NOTHING]),
        (B::Waiting, [news(N::Ended), news(N::Ended), NOTHING, news(N::TakenBack), news(N::RunsElsewhere), NOTHING]),
        (B::Parked, [news(N::Ended), news(N::Ended), news(N::Unparked), news(N::TakenBack), news(N::RunsElsewhere), NOTHING]),
        (B::Starting, [news(N::Ended), news(N::Ended), order(O::Bind), news(N::TakenBack), news(N::Started), NOTHING]),
        (B::Running, [news(N::Ended), news(N::Ended), news(N::Lost), news(N::Lost), news(N::Progress), NOTHING]),
        (B::Stopping, [news(N::Ended), news(N::Ended), news(N::Stopped), news(N::Stopped), order(O::Requeue), NOTHING]),
    ];
    const SHOWN: [Shown; 6] = [S::Gone, S::Over, S::Held, S::Queued, S::Running, S::Leaving];

    #[test]
    fn every_cell_of_the_table() {
        for (books, cells) in TABLE {
            for (shown, cell) in SHOWN.into_iter().zip(cells) {
                assert_eq!(reconcile(&plain(books, shown)), cell, "{books:?} × {shown:?}");
            }
        }
    }

    /// One fact is another than in a plain cell, and what comes of it.
    #[test]
    fn every_fact_changes_the_cells_that_it_should() {
        type Change = fn(&mut Facts);
        let barred: Change = |f| f.bar = Bar::Now;
        let never: Change = |f| f.bar = Bar::Always;
        let failed: Change = |f| f.asking = Asking::Failed;
        let pending: Change = |f| f.asking = Asking::Later;
        let bound: Change = |f| f.is_bound = true;
        let requeued: Change = |f| f.is_requeued = true;
        let elsewhere: Change = |f| f.is_there = false;
        let stuck: Change = |f| f.is_stuck = true;
        #[rustfmt::skip]
        let rows: [(Books, Shown, &[Change], Cell); 36] = [
            (B::Unknown, S::Leaving, &[stuck], NOTHING),
            (B::Running, S::Leaving, &[stuck], news(N::Left)),
            (B::Stopping, S::Leaving, &[stuck], news(N::Left)),
            (B::Unknown, S::Held, &[barred], news(N::Submitted)),
            (B::Unknown, S::Held, &[never], order(O::HandOver)),
            (B::Unknown, S::Held, &[never, |f| f.is_held_by_others = true], NOTHING),
            (B::Unknown, S::Queued, &[requeued], NOTHING),
            (B::Unknown, S::Running, &[elsewhere], NOTHING),
            (B::Waiting, S::Held, &[barred], news(N::Parked)),
            (B::Waiting, S::Held, &[never], news(N::Left)),
            (B::Waiting, S::Queued, &[requeued], order(O::Hold)),
            (B::Waiting, S::Running, &[elsewhere], news(N::RunsElsewhere)),
            (B::Parked, S::Held, &[barred], NOTHING),
            (B::Parked, S::Held, &[never], news(N::Left)),
            (B::Parked, S::Queued, &[requeued], order(O::Hold)),
            (B::Starting, S::Held, &[bound], order(O::Release)),
            (B::Starting, S::Held, &[pending], NOTHING),
            (B::Starting, S::Held, &[pending, bound], NOTHING),
            (B::Starting, S::Held, &[failed], news(N::StartRefused)),
            (B::Starting, S::Held, &[barred, bound], news(N::StartRefused)),
            (B::Starting, S::Held, &[never], news(N::Left)),
            (B::Starting, S::Queued, &[bound], order(O::Hold)),
            (B::Starting, S::Queued, &[bound, |f| f.is_released = true], NOTHING),
            (B::Starting, S::Queued, &[bound, |f| f.is_released = true, failed], order(O::Hold)),
            (B::Starting, S::Queued, &[requeued], order(O::Hold)),
            (B::Starting, S::Queued, &[failed], order(O::Hold)),
            (B::Starting, S::Running, &[elsewhere], news(N::RunsElsewhere)),
            (B::Starting, S::Running, &[pending], news(N::RunsElsewhere)),
            (B::Starting, S::Running, &[failed], news(N::Started)),
            (B::Running, S::Running, &[elsewhere], news(N::RunsElsewhere)),
            (B::Running, S::Queued, &[requeued], news(N::Lost)),
            (B::Stopping, S::Running, &[|f| f.can_stop = false], news(N::StopRefused)),
            (B::Stopping, S::Running, &[failed], news(N::StopRefused)),
            (B::Stopping, S::Running, &[|f| f.asking = Asking::Signal], order(O::Signal)),
            (B::Stopping, S::Running, &[pending], NOTHING),
            (B::Stopping, S::Queued, &[requeued], news(N::Stopped)),
        ];
        for (books, shown, changes, cell) in rows {
            let mut facts = plain(books, shown);
            changes.iter().for_each(|change| change(&mut facts));
            assert_eq!(reconcile(&facts), cell, "{facts:?}");
        }
    }

    /// What holds for all facts, whatever the others say.
    #[test]
    fn no_combination_breaks_a_rule() {
        let books = [B::Unknown, B::Waiting, B::Parked, B::Starting, B::Running, B::Stopping];
        let bars = [Bar::None, Bar::Now, Bar::Always];
        let askings = [Asking::Later, Asking::Signal, Asking::Now, Asking::Failed];
        for n in 0..6 * 6 * 3 * 4 * 128u32 {
            let bit = |at: u32| (n / (6 * 6 * 3 * 4)) & (1 << at) != 0;
            let facts = Facts {
                books: books[n as usize % 6],
                shown: SHOWN[n as usize / 6 % 6],
                bar: bars[n as usize / 36 % 3],
                asking: askings[n as usize / 108 % 4],
                is_held_by_others: bit(0),
                is_bound: bit(1),
                is_there: bit(2),
                is_requeued: bit(3),
                is_released: bit(4),
                can_stop: bit(5),
                is_stuck: bit(6),
            };
            let (news, order) = reconcile(&facts);
            assert!(
                news.is_none() || order.is_none(),
                "{facts:?}: first the books, then the engine"
            );
            // Only a job that the books have running is stopped, and only one that is held is started.
            let stops = matches!(order, Some(O::Signal | O::Requeue));
            assert!(!stops || facts.books == B::Stopping && facts.shown == S::Running, "{facts:?}");
            let starts = matches!(order, Some(O::Bind | O::Release));
            assert!(!starts || facts.books == B::Starting && facts.shown == S::Held, "{facts:?}");
            assert!(!starts || facts.bar == Bar::None, "{facts:?}");
            // What somebody else holds is released by nobody.
            let hands_over = order == Some(O::HandOver);
            assert!(
                !hands_over || !facts.is_held_by_others && facts.books == B::Unknown,
                "{facts:?}"
            );
            // The books lose no job that the engine has, and keep none that it has not.
            let is_over = matches!(facts.shown, S::Gone | S::Over);
            assert_eq!(news == Some(N::Ended), is_over && facts.books != B::Unknown, "{facts:?}");
        }
    }
}
