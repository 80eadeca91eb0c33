//! Cuts of real graphs, where they are at hand, against those of METIS 5.2 alone, by recursive bisection
//! into 8 parts within 3 % of each other.

use std::path::Path;

use hither_gnn::load::{self, Options};
use hither_gnn::partition::{Method, Settings, partition, quality};

const GRAPHS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/graphs");

#[test]
fn cuts_are_as_good_as_those_of_metis() {
    for (name, metis_share) in [
        ("debian/debian-run.npz", 0.205),
        ("shchur/flickr.npz", 0.607),
        ("shchur/amazon_cs.npz", 0.228),
        ("tolokers.npz", 0.337),
        ("facebook-page", 0.105),
        ("planetoid-pubmed", 0.118),
    ] {
        let path = Path::new(GRAPHS).join(name);
        if !path.exists() {
            eprintln!("skipped: {} absent", path.display());
            continue;
        }
        let data = load::open(&path, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
        let share = |method| {
            let settings = Settings { method, parts: 8, ..Settings::default() };
            let cut = partition(&data.graph, &data.labels, &data.split.train, &settings).unwrap();
            let report = quality(&data.graph, &data.labels, &data.split.train, &cut);
            for spread in [report.train, report.nodes] {
                let most = (1.03 * spread.mean).ceil() as u64 + 1;
                assert!(spread.max <= most, "{name} {method}: {spread:?}");
            }
            report.cut_share
        };
        let [metis, ldg, random] = [Method::Metis, Method::Ldg, Method::Random].map(share);
        assert!(metis < 1.05 * metis_share, "{name}: {metis}, expected {metis_share}");
        assert!(metis < ldg && ldg < random, "{name}: {metis} {ldg} {random}");
    }
}
