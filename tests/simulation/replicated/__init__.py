"""Histories of replicated states: the shipped replicas over a model of log and coordinator."""
