"""Asynchronous training: workers that wait for nobody, and parameter servers that keep the weights.

``train_asynchronously`` is the way in (``train``). A ps or a worker lends itself to the chief
(``server``). The chief connects (``connection``, ``late``), shares the data out (``shares``),
makes the model whole (``building``, ``optimizers``), traces one step (``step``, ``arrivals``) and
hands it out until the epochs are done (``chief``, ``epochs``); ``reach`` says who answers,
``saved_progress`` keeps what is trained, ``refusals`` says what cannot be trained so.
"""
