#!/usr/bin/env python3
"""Makes library.toml from a file of measured figures (placements.json; its keys are named below).

    python3 make.py placements.json > library.toml

Standard library only. What is measured is taken as a median of ours per (model, cluster,
placement) with three digits; what is not is an estimate by the rules below, and says so in `source`.
"""
import json
import statistics
import sys

# Plain models: name -> (gradient bytes key or figure, what the largest tensor is, how compute_s
# is found). FLOPs are forward GFLOPs an image, as model cards give them.
GRADIENTS = {  # parameters x 4 bytes, where the data file has none
    "inception4": (42.7e6 * 4, "42.7 M parameters"),
    "googlenet": (6.6e6 * 4, "6.6 M parameters"),
    "a2c": (1.7e6 * 4, "1.7 M parameters, a small convolutional policy"),
    "a3c": (1.7e6 * 4, "1.7 M parameters, a small convolutional policy"),
    "dqn": (1.7e6 * 4, "1.7 M parameters, a small convolutional policy"),
    "lm": (28.9e6 * 4, "28.9 M parameters, a two-layer LSTM on WikiText-2"),
    "transformer": (50e6 * 4, "about 50 M parameters, six layers on Multi30k"),
    "recommendation": (24e6 * 4, "about 24 M parameters, an autoencoder on MovieLens-20M"),
    "deepspeech2": (38e6 * 4, "about 38 M parameters"),
    "ncf": (1.6e6 * 4, "about 1.6 M parameters on MovieLens-1M"),
    "cyclegan": (28.3e6 * 4, "28.3 M parameters, two generators and two discriminators"),
}
GRADIENT_KEYS = {
    "resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnet101": "ResNet-101",
    "resnet152": "ResNet-152", "vgg11": "VGG-11", "vgg16": "VGG-16", "vgg19": "VGG-19",
    "alexnet": "AlexNet", "inception3": "Inception-v3", "mobilenet": "MobileNet-v2",
    "shufflenet_v2_x1_0": "ShuffleNet-v2-x1.0", "bert": "BERT-base", "gpt2": "GPT-2 (124M)",
    "yolov3": "YOLOv3",
}
# The largest tensor over all parameters, for models that Tiresias' table leaves out.
SKEW = {
    "bert": (0.21, "the word embedding"), "gpt2": (0.31, "the word embedding"),
    "resnet18": (0.20, "the last 3x3 convolution"), "mobilenet": (0.37, "the classifier"),
    "shufflenet_v2_x1_0": (0.45, "the classifier"), "googlenet": (0.15, "the classifier"),
    "lm": (0.45, "the word embedding"), "transformer": (0.15, "the word embedding"),
    "recommendation": (0.5, "the first layer"), "ncf": (0.3, "the user embedding"),
    "yolov3": (0.08, "a 3x3 convolution"), "deepspeech2": (0.1, "a recurrent layer"),
    "cyclegan": (0.08, "a 3x3 convolution"), "a2c": (0.9, "the first dense layer"),
    "a3c": (0.9, "the first dense layer"), "dqn": (0.9, "the first dense layer"),
}
GAVEL_PLAIN = {  # plain model -> job type whose one-GPU V100 speed it takes
    "resnet18": "ResNet-18 (batch size 128)", "resnet50": "ResNet-50 (batch size 64)",
    "lm": "LM (batch size 80)", "transformer": "Transformer (batch size 128)",
    "recommendation": "Recommendation (batch size 2048)", "a3c": "A3C", "cyclegan": "CycleGAN",
}
MURI_PLAIN = ["bert", "gpt2", "vgg16", "vgg19", "shufflenet_v2_x1_0", "a2c", "dqn"]
POLLUX_PLAIN = {"yolov3": "yolov3", "deepspeech2": "deepspeech2", "ncf": "ncf"}
FLOPS = {  # our estimate: forward GFLOPs relative to a measured relative, at its batch size
    "resnet101": ("resnet50", 7.8 / 4.1), "resnet152": ("resnet50", 11.6 / 4.1),
    "inception3": ("resnet50", 5.7 / 4.1), "inception4": ("resnet50", 12.3 / 4.1),
    "googlenet": ("resnet50", 1.5 / 4.1), "alexnet": ("resnet50", 0.7 / 4.1),
    "mobilenet": ("resnet50", 0.9 / 4.1),  # 0.3 GFLOPs at a third of the efficiency
    "vgg11": ("vgg16", 7.6 / 15.5),
}
APPS = {"cifar10": "resnet18", "imagenet": "resnet50", "bert": "bert", "yolov3": "yolov3",
        "deepspeech2": "deepspeech2", "ncf": "ncf"}
GAVEL_BASE = {"ResNet-18": "resnet18", "ResNet-50": "resnet50", "LM": "lm",
              "Transformer": "transformer", "Recommendation": "recommendation", "A3C": "a3c",
              "CycleGAN": "cyclegan"}
# Pollux' traces leave out how long a job trains. Our estimate: the epochs that Pollux' own simulator
# runs each application for, times the public size of the training set.
WORK = {
    "cifar10": (100 * 50_000, "100 epochs of the 50,000 images of CIFAR-10"),
    "imagenet": (90 * 1_281_167, "90 epochs of the 1,281,167 images of ImageNet"),
    "bert": (2 * 88_000, "2 epochs of about 88,000 SQuAD features"),
    "yolov3": (50 * 16_551, "50 epochs of the 16,551 images of PASCAL VOC 2007 and 2012"),
    "deepspeech2": (80 * 4_500, "80 epochs of about 4,500 CMU-ARCTIC utterances"),
    "ncf": (10 * 4_970_845, "10 epochs of 994,169 MovieLens-1M ratings with 4 negatives each"),
}
# Which models stand in for jobs without a name, by GPU-hours as Pollux' authors class jobs
# (small up to 1, medium up to 10, large up to 100, extra large beyond). The weights are ours:
# short work is light on the network, long work on many GPUs is heavy.
CLASSES = [
    (1, {"resnet18": 3, "mobilenet": 2, "shufflenet_v2_x1_0": 1, "ncf": 2, "lm": 1,
         "googlenet": 1, "resnet50": 1}),
    (10, {"resnet18": 1, "googlenet": 1, "mobilenet": 1, "resnet50": 2, "inception3": 1,
          "deepspeech2": 1, "yolov3": 1, "transformer": 1, "alexnet": 1}),
    (100, {"resnet50": 3, "resnet101": 2, "inception4": 1, "yolov3": 1, "deepspeech2": 1,
           "vgg16": 1, "bert": 2, "transformer": 1}),
    (None, {"resnet50": 2, "resnet152": 1, "vgg19": 2, "vgg16": 1, "bert": 3, "gpt2": 3}),
]
TIRESIAS_RESTART = 62.0


def three(value):
    return float(f"{value:.3g}")


def toml(value):
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return str(value)


def entry(name, compute_s, gradient_bytes, restart_s, skew, source, table=()):
    print("\n[[profile]]")
    print(f"name = {toml(name)}")
    print(f"compute_s = {toml(three(compute_s))}")
    print(f"gradient_bytes = {toml(float(round(gradient_bytes)))}")
    print(f"restart_s = {toml(float(restart_s))}")
    print(f"skew = {toml(three(skew))}")
    print(f"source = {toml(source)}")
    if table:
        print("table = [")
        for placement, step in table:
            print(f"  {{ placement = {list(placement)}, step_s = {toml(three(step))} }},")
        print("]")


def main(path):
    data = json.load(open(path))
    gavel = {}
    for row in data["gavel_throughputs"]:
        if row["gpu"] == "v100" and row["steps_per_s_consolidated"]:
            gavel.setdefault(row["model"], {})[row["gpus"]] = row
    muri = {}
    for row in data["muri_stage_times_ms"]:
        muri.setdefault(row["model"], {})[row["gpus"]] = row
    overhead = data["muri_restart_overhead_s"]
    tensors = {row["model"]: row for row in data["tiresias_tensors_MB"]}
    placed = {}
    for row in data["pollux_sia_placements"]["rows"]:
        placement = tuple(sorted((int(c) for c in row["placement"]), reverse=True))
        placed.setdefault((row["app"], row["cluster"]), {}).setdefault(placement, []).append(row)
    clusters = data["pollux_sia_placements"]["clusters"]

    compute, said = {}, {}
    for model, job_type in GAVEL_PLAIN.items():
        compute[model] = 1.0 / gavel[job_type][1]["steps_per_s_consolidated"]
        said[model] = f"compute: Gavel throughputs, {job_type}, one V100"
    for model in MURI_PLAIN:
        row = muri[model][1]
        compute[model] = (row["iter_ms"] - row["network_ms"]) / 1000.0
        said[model] = f"compute: Muri stage times, batch {row['batch']}, one V100"
    for model, app in POLLUX_PLAIN.items():
        row = placed[(app, "aws" if app == "ncf" else "azure")][(1,)][0]
        compute[model] = row["step_s"] - row["sync_s"]
        said[model] = f"compute: Pollux and Sia placements, batch {row['local_bsz']}, one GPU"
    for model, (relative, ratio) in FLOPS.items():
        compute[model] = compute[relative] * ratio
        said[model] = f"compute: our estimate, {ratio:.2f} x {relative} by forward FLOPs"

    def figures(model):
        """Gradient bytes, restart, skew, and their sources."""
        if model in GRADIENT_KEYS:
            gradient = data["gradient_bytes_fp32_standard"][GRADIENT_KEYS[model]]
            source = "gradient: parameters x 4 bytes"
        else:
            gradient, words = GRADIENTS[model]
            source = f"gradient: our estimate, {words}"
        if model in overhead["8"]:
            restart, source = overhead["8"][model], source + "; restart: Muri, 8 GPUs"
        else:
            restart, source = TIRESIAS_RESTART, source + "; restart: mean of Tiresias' authors"
        if model in tensors:
            skew, source = tensors[model]["skew_largest_share"], source + "; skew: Tiresias tensors"
        else:
            skew, words = SKEW[model]
            source += f"; skew: our estimate, {words}"
        return gradient, restart, skew, source

    print("# Made by make.py: do not edit. Times in seconds, one GPU's share of an iteration.")
    print("# Sources: Gavel (github.com/stanford-futuredata/gavel, MIT); Muri")
    print("# (github.com/Rivendile/Muri, Apache-2.0); Pollux (github.com/petuum/adaptdl, Apache-2.0)")
    print("# and Sia (github.com/siasosp23/artifacts), as medians of ours; Tiresias")
    print("# (github.com/SymbioticLab/Tiresias, Apache-2.0).")

    print("\n[aliases]")
    for app, model in APPS.items():
        if app != model:
            print(f"{toml(app)} = {toml(model)}")
            for cluster in clusters:
                print(f"{toml(f'{app}@{cluster}')} = {toml(f'{model}@{cluster}')}")
    aliases = {"GPT-2": "gpt2", "BERT-base": "bert", "Inception-v3": "inception3",
               "Inception-v4": "inception4", "MobileNet-v2": "mobilenet",
               "shufflenet": "shufflenet_v2_x1_0", "NeuMF": "ncf"}
    for alias, name in aliases.items():
        print(f"{toml(alias)} = {toml(name)}")
    names = {}
    for job_type in sorted(gavel):
        base, _, batch = job_type.partition(" (batch size ")
        name = GAVEL_BASE[base] + (f"-b{batch.rstrip(')')}" if batch else "") + "@gavel"
        names[job_type] = (name, GAVEL_BASE[base])
        if batch:  # without a batch the job type is the plain model's own name
            print(f"{toml(job_type)} = {toml(name)}")

    for hours, models in CLASSES:
        print("\n[[class]]")
        if hours:
            print(f"gpu_hours_max = {float(hours)}")
        weights = ", ".join(f"{model} = {float(w)}" for model, w in models.items())
        print(f"models = {{ {weights} }}")

    for app, (samples, words) in WORK.items():
        batch = statistics.median(
            row["local_bsz"] for rows in placed[(app, "aws")].values() for row in rows)
        print(f"\n[work.{app}]")
        print(f"samples = {float(samples)}")
        print(f"model = {toml(f'{APPS[app]}@aws')}")
        print(f"batch = {float(batch)}")
        print(f"source = {toml('our estimate: ' + words)}")

    for model in sorted(compute):
        gradient, restart, skew, source = figures(model)
        entry(model, compute[model], gradient, restart, skew, f"{said[model]}; {source}")

    for job_type in sorted(gavel):
        name, model = names[job_type]
        gradient, restart, skew, source = figures(model)
        table = []
        # Gavel counts the steps of all workers together: an iteration is one step of each.
        for gpus, row in sorted(gavel[job_type].items()):
            table.append(((gpus,), gpus / row["steps_per_s_consolidated"]))
            if gpus > 1 and row["steps_per_s_unconsolidated"]:
                table.append(((1,) * gpus, gpus / row["steps_per_s_unconsolidated"]))
        entry(name, table[0][1], gradient, restart, skew,
              f"steps: Gavel throughputs, V100, {job_type}; {source}", table)

    for model in sorted(muri):
        gradient, restart, skew, source = figures(model)
        table = []
        for gpus, row in sorted(muri[model].items()):
            placement = (gpus,) if gpus <= 8 else (8,) * (gpus // 8)
            table.append((placement, row["iter_ms"] / 1000.0))
        first = muri[model][1]
        entry(f"{model}@muri", (first["iter_ms"] - first["network_ms"]) / 1000.0, gradient,
              restart, skew, f"steps: Muri stage times, 8 V100 a machine; {source}", table)

    for (app, cluster), rows in sorted(placed.items()):
        gradient, restart, skew, source = figures(APPS[app])
        table = [(placement, statistics.median(row["step_s"] for row in measured))
                 for placement, measured in sorted(rows.items(), key=lambda r: (sum(r[0]), r[0]))]
        alone = rows[(1,)][0]
        entry(f"{APPS[app]}@{cluster}", max(alone["step_s"] - alone["sync_s"], alone["step_s"] / 2),
              gradient, restart, skew,
              f"steps: medians of Pollux and Sia placements, {clusters[cluster]}; {source}", table)


if __name__ == "__main__":
    main(sys.argv[1])
