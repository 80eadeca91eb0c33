//! Tiresias: least attained service, in three queues, counting GPUs.
//!
//! The rules keep each queue as a list, walk it in order while GPUs last, and then move the jobs
//! that wait behind those that run, both in their old order. So a queue is its running jobs
//! followed by its waiting ones, and waiting jobs lie here in one deque per size with numbers for
//! their order: walking skips a size that does not fit instead of visiting its jobs.

use std::collections::VecDeque;

use super::{Job, Tally, Workload};

/// GPU-seconds after which a job leaves the first and the second queue.
const LIMITS: [f64; 2] = [3250.0, 7200.0];
const QUEUES: usize = LIMITS.len() + 1;

#[derive(Debug, Default)]
struct Queue {
    running: Vec<usize>,
    /// Running jobs that have just outgrown the queue before; they line up behind all others.
    entering: Vec<usize>,
    /// By size; the number orders jobs across sizes.
    waiting: Vec<VecDeque<(i64, usize)>>,
    front: i64,
    back: i64,
}

impl Queue {
    fn push_back(&mut self, size: usize, job: usize) {
        self.back += 1;
        self.waiting[size].push_back((self.back, job));
    }

    fn push_front(&mut self, size: usize, job: usize) {
        self.front -= 1;
        self.waiting[size].push_front((self.front, job));
    }

    /// Takes the first waiting job that `free` GPUs suffice for.
    fn pop_fitting(&mut self, sizes: &[u32], free: u64) -> Option<usize> {
        let fits = sizes.iter().take_while(|&&gpus| u64::from(gpus) <= free);
        let heads = fits.zip(&mut self.waiting).filter(|(_, jobs)| !jobs.is_empty());
        let (_, first) = heads.min_by_key(|(_, jobs)| jobs.front().map(|head| head.0))?;
        first.pop_front().map(|(_, job)| job)
    }
}

#[derive(Debug)]
struct Engine<'a> {
    jobs: &'a mut [Job],
    sizes: &'a [u32],
    gpus: u64,
    queues: [Queue; QUEUES],
    before: f64,
    /// Next jobs to end.
    ending: Vec<usize>,
    /// Jobs whose end was once expected together with the next arrival. The original then ends
    /// them with that arrival, even if a jump in between put their end off.
    promised: Vec<usize>,
    /// When the next job outgrows its queue.
    jump: f64,
    /// Scratch for jobs that lose their GPUs.
    losers: Vec<usize>,
    tally: Tally,
}

pub(super) fn simulate(work: &mut Workload, gpus: u64) -> Tally {
    let queue = || Queue { waiting: vec![VecDeque::new(); work.sizes.len()], ..Queue::default() };
    let mut engine = Engine {
        queues: std::array::from_fn(|_| queue()),
        jobs: &mut work.jobs,
        sizes: &work.sizes,
        gpus,
        before: 0.0,
        ending: Vec::new(),
        promised: Vec::new(),
        jump: f64::INFINITY,
        losers: Vec::new(),
        tally: Tally::default(),
    };
    let mut arrivals = work.arrivals.iter().peekable();
    let mut end = f64::INFINITY;
    while arrivals.peek().is_some() || end < f64::INFINITY {
        let arrival = arrivals.peek().map_or(f64::INFINITY, |(time, _)| *time);
        let now = arrival.min(end).min(engine.jump);
        if arrival == end {
            engine.promised.clone_from(&engine.ending);
        }
        if now == arrival {
            engine.finish_promised(now);
        } else if now == end {
            engine.finish(now);
        }
        if now == arrival
            && let Some((_, group)) = arrivals.next()
        {
            for job in group.clone() {
                engine.queues[0].push_back(engine.jobs[job].size, job);
            }
        }
        engine.advance(now);
        engine.plan(now);
        end = engine.look_ahead(now);
        engine.before = now;
        engine.tally.events += 1;
    }
    engine.tally
}

/// When a job that runs on outgrows the queue of `limit`. The original rounds up to whole
/// seconds of run time.
fn jump_time(job: &Job, limit: f64, now: f64) -> f64 {
    (limit / f64::from(job.gpus)).ceil() - job.run_s + now
}

impl Engine<'_> {
    fn finish(&mut self, now: f64) {
        for &job in &self.ending {
            self.jobs[job].finish(self.before, now);
        }
        self.tally.finished.append(&mut self.ending);
        for queue in &mut self.queues {
            queue.running.retain(|&job| self.jobs[job].finish_s.is_none());
        }
    }

    fn finish_promised(&mut self, now: f64) {
        self.ending.clear();
        let jobs = &self.jobs;
        self.ending.extend(self.promised.drain(..).filter(|&job| jobs[job].finish_s.is_none()));
        if self.ending.is_empty() {
            return;
        }
        self.finish(now);
        // The jump may also have cost them their GPUs.
        for waiting in self.queues.iter_mut().flat_map(|queue| &mut queue.waiting) {
            waiting.retain(|&(_, job)| self.jobs[job].finish_s.is_none());
        }
    }

    /// Brings the running jobs up to `now` and sends those that outgrew their queue to the next.
    fn advance(&mut self, now: f64) {
        let before = self.before;
        for q in 0..QUEUES {
            let (head, tail) = self.queues.split_at_mut(q + 1);
            let limit = LIMITS.get(q).copied();
            head[q].running.retain(|&index| {
                let job = &mut self.jobs[index];
                job.advance(before, now);
                let (Some(limit), Some(next)) = (limit, tail.first_mut()) else {
                    return true;
                };
                let outgrown = job.run_s * f64::from(job.gpus) >= limit;
                if outgrown {
                    next.entering.push(index);
                }
                !outgrown
            });
        }
        for queue in &mut self.queues {
            // The original moves jobs in order of arrival.
            queue.entering.sort_unstable();
        }
    }

    /// Walks the queues from an empty cluster.
    fn plan(&mut self, now: f64) {
        let jobs = &mut *self.jobs;
        let mut free = self.gpus;
        for queue in &mut self.queues {
            self.losers.clear();
            queue.running.retain(|&job| {
                let keeps = keeps(&mut jobs[job], &mut free);
                if !keeps {
                    self.losers.push(job);
                }
                keeps
            });
            while let Some(job) = queue.pop_fitting(self.sizes, free) {
                free -= u64::from(jobs[job].gpus);
                jobs[job].start_s.get_or_insert(now);
                queue.running.push(job);
            }
            for job in std::mem::take(&mut queue.entering) {
                if keeps(&mut jobs[job], &mut free) {
                    queue.running.push(job);
                } else {
                    queue.push_back(jobs[job].size, job);
                }
            }
            // They stood before everybody who waited already.
            for &job in self.losers.iter().rev() {
                queue.push_front(jobs[job].size, job);
            }
        }
    }

    /// Finds the next jump, and who ends next and when.
    fn look_ahead(&mut self, now: f64) -> f64 {
        self.ending.clear();
        self.jump = f64::INFINITY;
        let mut end = f64::INFINITY;
        for (q, queue) in self.queues.iter().enumerate() {
            for &index in &queue.running {
                let job = &self.jobs[index];
                let ends = now + job.left_s();
                if ends < end {
                    end = ends;
                    self.ending.clear();
                }
                if ends == end {
                    self.ending.push(index);
                }
                if let Some(&limit) = LIMITS.get(q) {
                    self.jump = self.jump.min(jump_time(job, limit, now));
                }
            }
        }
        // Completion is in order of arrival.
        self.ending.sort_unstable();
        end
    }
}

/// Whether a running job's GPUs are still `free` for it at its turn; it takes them or is preempted.
fn keeps(job: &mut Job, free: &mut u64) -> bool {
    let left = free.checked_sub(u64::from(job.gpus));
    match left {
        Some(left) => *free = left,
        None => job.preemptions += 1,
    }
    left.is_some()
}
