"""Replaying traffic: clients that measure, processes to measure, bounds to measure against, and the demo.

Everything here may use every other room; no other room uses this one.
"""
