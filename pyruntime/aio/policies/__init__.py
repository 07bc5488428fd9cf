"""The policies that the options of an operator make. `pillarbox.aio.policy` has their interface."""
