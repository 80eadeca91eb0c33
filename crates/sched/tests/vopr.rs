//! Random clusters, workloads and faults under the outside checkers.

use hither_sched::vopr::Case;

#[test]
fn random_cases_keep_all_invariants() {
    for seed in 0..300 {
        if let Err(error) = Case::new(seed).run() {
            panic!("{error}\nto reproduce: hither vopr --first {seed} --seeds 1");
        }
    }
}
