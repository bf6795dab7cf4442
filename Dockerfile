# Build for CUDA (the default build of torch):  docker build -t springbok .
#   Run: docker run --gpus all springbok
# Build for the CPU (a tenth of the size):      docker build -t springbok --build-arg TORCH_INDEX_URL=URL .
#   URL is the package index that PyTorch's install page names for the CPU build.
# With Box2D, MuJoCo, MiniGrid and EnvPool: add --build-arg WITH_ENVS=1 to the build.
# Keep the results: docker run -v "$PWD/results:/app/results" springbok --op_mode=train
# The image contains ale-py, which is licensed under GPL-2.0; Springbok itself is MIT-licensed.
FROM python:3.12-slim

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

COPY --chown=trainer:trainer main.py option_flags.py setting.py ./
COPY --chown=trainer:trainer wrappers wrappers
COPY --chown=trainer:trainer replay replay
COPY --chown=trainer:trainer agents agents
COPY --chown=trainer:trainer workers workers
COPY --chown=trainer:trainer learner learner
COPY --chown=trainer:trainer benchmarks benchmarks
COPY --chown=trainer:trainer presets presets

RUN mkdir results && chown trainer:trainer results
USER 1000
VOLUME /app/results

ENTRYPOINT ["python", "main.py"]
CMD ["--op_mode=train"]
