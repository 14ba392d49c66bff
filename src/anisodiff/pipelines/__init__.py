"""Our models in diffusers (extra ``diffusers``): the pipeline, and denoisers for its schedulers."""
