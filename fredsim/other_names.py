"""What PyTorch, Flower, FedLab, Hugging Face and papers call things that have other names here, or none."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

__all__ = ["last_part", "letters_of", "other_name"]

OWN_LOSS = "fredsim has no such loss: write it as a function of yours (docs/losses.md)"
OWN_METRIC = "fredsim has no such metric: write it as a function of yours (docs/losses.md)"
OWN_OPTIMIZER = "fredsim has no such optimizer: write it as a class of yours (docs/clients.md)"
OWN_SERVER = "fredsim has no such server: write it as a class of yours (docs/own_server.md)"
OWN_COMPRESSOR = "fredsim has no such compressor: write it as a class of yours (docs/own_compressor.md)"
OWN_SCHEDULE = "fredsim has no such schedule: write it as a function of yours (docs/own_schedule.md)"
LOCAL_STEPS = "it is the server sync with clients.local_steps"

#: By a name that is known where they stand: what is known, or what to do (which has spaces), with the names that others
#: have for it, by their letters.
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "mse": {  # losses
        "bce": "bcewithlogits binarycrossentropy binarycrossentropywithlogits logistic",
        "cross_entropy": "ce nll xent softmax logsoftmax logloss categoricalcrossentropy sparsecategoricalcrossentropy",
        "mse": "meansquarederror squarederror squared l2",
        OWN_LOSS: (
            "l1 mae meanabsoluteerror huber smoothl1 quantile kl kldiv gaussiannll poissonnll ctc focal hinge "
            "hingeembedding softmargin multimargin multilabelmargin multilabelsoftmargin marginranking "
            "cosineembedding tripletmargin triplet contrastive"
        ),
    },
    "sync": {  # servers
        f"{LOCAL_STEPS} (fredsim show clients/fedavg)": "fedavg federatedaveraging localsgd",
        f"{LOCAL_STEPS} and clients.prox (fredsim show clients/fedprox)": "fedprox",
        f"{LOCAL_STEPS} and clients.control_variates (fredsim show clients/scaffold)": "scaffold",
        f"{LOCAL_STEPS}, or asynchronous as in fredsim show clients/diloco": "diloco",
        f"{LOCAL_STEPS} and inner: {{name: adam, lr: …}}": "fedadam fedopt",
        f"{LOCAL_STEPS} and inner: {{name: adagrad, lr: …}}": "fedadagrad",
        f"{LOCAL_STEPS} and inner: {{name: momentum, lr: …}}": "fedavgm",
        "sync": "fedsgd ssgd syncsgd synchronous synchronoussgd bsp allreduce",
        "asgd": "sgd async asyncsgd asynchronous hogwild parameterserver",
        "momentum": "sgdm",
        "sign_majority": "signsgd",
        "ternary_sync": "terngrad",
        OWN_SERVER: (
            "fedyogi fednova fedmedian fedtrimmedavg trimmedmean krum multikrum bulyan qfedavg feddyn adadelta adamax "
            "amsgrad adafactor radam yogi lamb lars lion muon rprop sparseadam shampoo lbfgs"
        ),
    },
    "adamw": {  # optimizers of local steps
        "adamw": "adam",
        "momentum": "sgdm nesterov",
        OWN_OPTIMIZER: (
            "adagrad rmsprop nadam asgd adadelta adamax amsgrad adafactor radam yogi lamb lars lion muon rprop "
            "sparseadam shampoo lbfgs"
        ),
    },
    "mnist": {  # data sets
        **{
            f"torchvision:{name}": name.lower()
            for name in ("CIFAR10", "CIFAR100", "KMNIST", "QMNIST", "SVHN", "STL10", "USPS")
        },
        "torchvision:FashionMNIST": "fashionmnist fmnist",
        "digits": "loaddigits",
        "text:FILE": "shakespeare tinyshakespeare wikitext wikitext2 ptb",
        "save its arrays, and give npz:FILE (docs/data.md)": (
            "emnist femnist celeba iris wine boston loadiris loadwine adult californiahousing agnews imdb"
        ),
        "save its arrays, and give npy:FOLDER (docs/data.md)": "imagenet tinyimagenet imagefolder",
    },
    "mlp": {  # models
        "mlp": "dense fc feedforward dnn net",
        "lenet": "cnn simplecnn convnet",
        "gpt": "transformer nanogpt mingpt lm",
        "linear": "linearregression",
        "it is mlp with hidden: []": "logisticregression logreg softmaxregression",
    },
    "round_robin": {  # dispatchers
        "uniform": "random async asynchronous",
        "clock": "time timed realtime simulated delay",
        "trace": "log replay",
        "it is the noise of a clock's compute (docs/time.md)": "poisson exponential gamma lognormal",
        "rounds are made by the server: {name: sync}": "sync synchronous bsp",
    },
    "top5": {  # metrics
        "top5": "top5accuracy",
        "perplexity": "ppl",
        "1 − accuracy is the column validation_error, which is always there": "accuracy acc top1accuracy",
        "the loss is the column validation_loss, which is always there": "loss crossentropy",
        OWN_METRIC: "f1 f1score auc auroc rocauc precision recall r2 r2score mse mae rmse bleu confusionmatrix",
    },
    "dirichlet": {  # partitions
        "iid": "homo homogeneous uniform random",
        "dirichlet": "noniid hetero heterodir lda labelskew",
        "fredsim has no such partition: write the clients' rows to a file for {name: lists, file: …}": (
            "exponential linear square size naturalid unbalanced"
        ),
    },
    "top_k": {  # compressors
        "ternary": "terngrad",
        "sign": "signsgd",
        "error_feedback_sign": "efsignsgd efsign errorfeedback",
        "qsgd": "quantize quantization",
        "top_k": "dgc sparsify",
        OWN_COMPRESSOR: "powersgd randk randomk fp16 fp16compresshook bf16",
    },
    "cosine": {  # schedules
        "step": "steplr",
        "cosine": "cosineannealing cosineannealinglr cosinedecay",
        "exponential": "exponentiallr exponentialdecay",
        "warmup": "getcosineschedulewithwarmup linearwarmup",
        OWN_SCHEDULE: (
            "lambdalr linear linearlr polynomial polynomiallr multisteplr onecyclelr cycliclr reducelronplateau"
        ),
    },
    "glorot": {  # initial weights
        "he": "kaiming kaiminguniform kaimingnormal henormal heuniform",
        "glorot": "xavier xavieruniform xaviernormal glorotuniform glorotnormal",
        "torch": "default pytorch",
        "normal": "gaussian randn",
    },
    "numba": {"numba": "cpu", "cuda": "gpu device", "numpy": "np"},  # backends
    "shuffled": {"shuffled": "shuffle random", "iid": "withreplacement"},  # sampling
    "validation_error": {  # columns
        "validation_error": "error valerror evalerror",
        "validation_loss": "loss valloss evalloss",
        "accuracy is 1 − validation_error": "accuracy acc valaccuracy valacc evalaccuracy",
    },
    "bytes": {"seconds": "time walltime", "iterations": "step steps iteration", "updates": "round rounds"},  # x axes
    "published": {  # keys of an experiment
        "iterations": "steps maxsteps numsteps niter iters",
        "updates": "rounds numrounds nrounds",
        "seed": "randomseed manualseed rngseed",
        "clients.count": "numclients nclients workers numworkers nworkers",
        "server": "algorithm strategy aggregator",
        "server.lr": "lr learningrate lrscheduler schedule scheduler",
        "data": "dataset datasets",
        "model": "network net arch architecture",
        "backend": "device accelerator",
        "evaluation.every": "evalevery evalinterval evalfreq loginterval",
    },
    "batch_size": {"count": "numclients nclients numworkers workers n", "fraction": "clientfraction fractionfit"},
    "gradient_norm": {"every": "interval frequency freq period"},  # keys of evaluation
    "augment": {"the folder of files is given by --data-root or FREDSIM_DATA": "root datadir dir folder path"},
    "hidden": {"hidden": "layers units widths hiddenlayers neurons"},
    "lr": {"lr": "learningrate stepsize eta eta0", "weight_decay": "wd"},
    "beta1": {"beta1": "betas"},
}
#: What names of others end with, beside what they say.
ENDINGS = ("loss", "partitioner", "dataset")
#: What stands before a name that is one of these libraries', such as torch.nn.MSELoss.
LIBRARIES = "torch torchvision flwr flwr_datasets fedlab tensorflow tf keras jax optax sklearn nn optim datasets"


def letters_of(word: str) -> str:
    """Return a name's letters and digits: RoundRobin, round-robin and round_robin have the same."""
    return re.sub(r"[\W_]", "", word.lower())


def other_name(word: str, known: Collection[str]) -> str:
    """Return the name that others call `word`, or what to do instead of it; "" if that is not said here.

    The name may be one of the `known`, or of a form that is not listed, such as torchvision:CIFAR10.
    """
    letters = letters_of(word)
    forms = {letters, *(letters.removesuffix(ending) for ending in ENDINGS)}
    tables = (names for one, names in OTHER_NAMES.items() if one in known)
    found = (meant for names in tables for meant, words in names.items() if not forms.isdisjoint(words.split()))
    return next(found, "")


def last_part(word: str) -> str:
    """Return the last part of a name in a library that many know, such as MSELoss of torch.nn.MSELoss."""
    library, dot, _ = word.partition(".")
    return word.rpartition(".")[2] if dot and library in LIBRARIES.split() else word
