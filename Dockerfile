# Build for CUDA (the default build of torch):  docker build -t springbok .
#   Run: docker run --gpus all springbok
# Build for the CPU (a tenth of the size):      docker build -t springbok --build-arg TORCH_INDEX_URL=URL .
#   URL is the package index that PyTorch's install page names for the CPU build.
# With Box2D, MuJoCo, MiniGrid and EnvPool: add --build-arg WITH_ENVS=1 to the build.
# With Ray and s3://, for the nodes of a cluster (deploy/kuberay.yaml):  docker build -t springbok-cluster --target cluster .
# Keep the results: docker run -v "$PWD/results:/app/results" springbok --op_mode=train
# The image contains ale-py, which is licensed under GPL-2.0; Springbok itself is MIT-licensed.
FROM python:3.12-slim AS base

ARG TORCH_INDEX_URL=
ARG WITH_ENVS=
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 1000 trainer
WORKDIR /app

COPY requirements.txt requirements-envs.txt ./
RUN if [ -n "$TORCH_INDEX_URL" ]; then \
      pip install --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' requirements.txt)"; \
    fi \
 && pip install -r requirements.txt \
 && if [ -n "$WITH_ENVS" ]; then pip install -r requirements-envs.txt; fi

COPY --chown=trainer:trainer main.py option_flags.py setting.py checked_files.py ./
COPY --chown=trainer:trainer wrappers wrappers
COPY --chown=trainer:trainer replay replay
COPY --chown=trainer:trainer agents agents
COPY --chown=trainer:trainer workers workers
COPY --chown=trainer:trainer learner learner
COPY --chown=trainer:trainer serve serve
COPY --chown=trainer:trainer clients/javascript clients/javascript
COPY --chown=trainer:trainer tools tools
COPY --chown=trainer:trainer benchmarks benchmarks
COPY --chown=trainer:trainer presets presets
COPY --chown=trainer:trainer springbok springbok

RUN mkdir results && chown trainer:trainer results
USER 1000
VOLUME /app/results

ENTRYPOINT ["python", "main.py"]
CMD ["--op_mode=train"]

# A node of a Ray cluster. Ray starts it with a command of its own, so it has no entry point. wget answers Kubernetes' probes.
FROM base AS cluster
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
COPY requirements-ray.txt requirements-store.txt ./
RUN pip install -r requirements-ray.txt -r requirements-store.txt
ENV PYTHONPATH=/app
USER 1000
ENTRYPOINT []
CMD ["ray", "start", "--head", "--block"]

# The default: the program on one machine.
FROM base AS springbok
