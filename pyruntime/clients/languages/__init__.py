"""The languages of services that do not speak OpenAI's: each a description, loaded by who speaks it."""
